"""The lines of the log of a server by their ids: `quire errors ID`, and docs/reference/log.md.

An id never changes its meaning, and is not used again. The lines of the core have their ids in
`crates/quire-kernel/src/event_id.rs`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The parts of a server, by the first digits of the ids.
PARTS: Final = {
    "00": "Life cycle",
    "01": "Watchdog",
    "02": "Configuration",
    "10": "Connections",
    "11": "Subscriptions",
    "12": "Replication",
    "20": "Journal",
    "31": "Queues",
    "40": "Last values and views",
    "50": "Administration",
    "60": "Actions",
    "70": "Statistics",
}


class Line(NamedTuple):
    """A line of the log."""

    meaning: str
    #: What to do; empty: nothing.
    advice: str = ""


LINES: Final[dict[str, Line]] = {
    "00-0000": Line("A line of a library that the server uses, without an id."),
    "00-0001": Line("The server listens for clients."),
    "00-0002": Line("The server was told to stop. It takes no more connections."),
    "00-0003": Line(
        "The instance has another name than at its last start.",
        "If this was not intended, stop the server and correct `name`. Programs take it for another instance.",
    ),
    "00-0004": Line(
        "The file with the earlier names of the instance cannot be used.",
        "Nothing, if the instance was never renamed. Otherwise a dead letter may come twice.",
    ),
    "00-0005": Line(
        "The clock of the machine shows an earlier time than the newest record of the log.",
        "Check the time service of the machine. Times are right again when the clock has passed that record.",
    ),
    "00-0006": Line(
        "Lines of the log were left out, because they came faster than they could be written.",
        "Look for the line that repeats, and for a slow disk or terminal. `exclude` of `[[logging]]` leaves out ids.",
    ),
    "00-0007": Line(
        "Connections were cut at the stop, because they did not close in time.",
        "Nothing: their clients connect again and send again what was not acknowledged.",
    ),
    "00-0008": Line(
        "The server stops, because it has a bug or cannot continue.",
        "Restart it. Report a bug with the output of `quire doctor`.",
    ),
    "00-0009": Line(
        "The limit on open files leaves room for fewer connections than `max_connections`.",
        "Raise the limit (`ulimit -n`), or lower `max_connections`.",
    ),
    "00-0010": Line(
        "The threads of the engine report a failure of the system.",
        "The text has the reason of the system. The engine stops when it cannot wait for connections.",
    ),
    "01-0001": Line(
        "A part of the server makes no progress: the event loop, or a thread that it needs. The stacks of all threads follow (01-0022).",
        "Wait: a slow disk or a machine without memory can be the cause, and 01-0002 says when the part runs again. "
        "Otherwise fail over, restart the server, and report the stacks.",
    ),
    "01-0002": Line("A part of the server that made no progress runs again."),
    "01-0022": Line(
        "The stack of a thread: an administrator, an action or the watchdog asked for it.",
        "Add it to a report of a bug.",
    ),
    "02-0001": Line(
        "A setting is valid and probably not intended.", "Compare it with the reference of the configuration."
    ),
    "02-0002": Line(
        "There is no `[[entitlement]]`: every user may do everything.",
        "Add entries, if not all users are administrators.",
    ),
    "02-0003": Line(
        "An address that other machines reach has no authentication.",
        "Set `[authentication]`, or let the server listen on a loopback address.",
    ),
    "02-0004": Line(
        "The configuration, or a file of users, was read again.",
        "When the result is `refused`: correct the mistake that the line names. The former state is in use.",
    ),
    "02-0005": Line(
        "A changed file of users cannot be used. The former users are in use.",
        "Correct the mistake that the line names.",
    ),
    "02-0006": Line("New connections use a new certificate."),
    "02-0007": Line(
        "A changed certificate cannot be used. The former certificate is in use.",
        "Correct the files before the former certificate expires.",
    ),
    "10-0001": Line("A client inside of the server writes a line.", "The text says what to do."),
    "10-0004": Line("A client logged on."),
    "10-0005": Line("A connection ended, and the server had not asked for it."),
    "10-0006": Line(
        "The server ended a connection. The line has the code and the reason that the client received.",
        "`quire errors CODE` explains the code.",
    ),
    "10-0007": Line(
        "The sequence of a publisher jumped far ahead.",
        "Check that the program numbers its messages as intended. Smaller numbers now count as duplicates.",
    ),
    "10-0008": Line(
        "A command was refused, because the user lacks a right (audit).",
        "`quire entitlement check USER RIGHT TOPIC` shows the entries that decide.",
    ),
    "10-0009": Line("Further commands of a user were refused (audit).", "See 10-0008."),
    "10-0010": Line("The server ended the connection of a user (audit)."),
    "10-0011": Line(
        "A logon was accepted or refused (audit). The reason is exact.",
        "Many refusals from one address can be guesses of a password: block the address.",
    ),
    "10-0012": Line(
        "A logon could not be checked.",
        "The line has the kind of the failure: often there is too little memory.",
    ),
    "10-0013": Line(
        "A TLS connection was closed before its logon.",
        "The reason says which side has to be repaired. Programs that scan ports cause such lines, too.",
    ),
    "10-0014": Line("Further TLS connections were closed for the same reason in one second.", "See 10-0013."),
    "10-0015": Line(
        "A client reads more slowly than messages arrive. Its messages move to disk, and nothing is lost.",
        "Find out why its program is slow. The page Clients of the console shows how much waits.",
    ),
    "10-0016": Line("An offlined client has read what waited for it on disk."),
    "11-0001": Line(
        "The server ended a subscription. The line has the code that the client received.",
        "`quire errors CODE` explains the code.",
    ),
    "11-0002": Line(
        "Messages cannot be read as their message type, so filters do not match them.",
        "Correct the publisher, or the `message_type` of the topic.",
    ),
    "12-0001": Line("A destination of replication is connected."),
    "12-0002": Line("A destination has everything that was in the log when it was connected."),
    "12-0003": Line(
        "A destination of replication is not connected.",
        "Check that the other instance runs and that its address is reached. The server tries again.",
    ),
    "12-0004": Line(
        "Publishers wait for a destination from now on, or no longer.",
        "While they do not wait, messages are confirmed that the destination does not have yet.",
    ),
    "12-0005": Line("A command paused or resumed a destination."),
    "12-0006": Line(
        "The log no longer has all records that a destination lacks.",
        "Copy the data of this instance to the destination, or leave the records out with `quire replication resume`.",
    ),
    "12-0007": Line("Another instance begins to send its records."),
    "12-0008": Line(
        "This instance ended the link of another instance.",
        "The reason says what does not fit. The other side tries again.",
    ),
    "12-0009": Line(
        "A message of another instance is not recorded here: another message has its bookmark.",
        "Let each program use one name, and publish on one instance at a time.",
    ),
    "12-0010": Line("The connection of an instance that sent its records is gone."),
    "12-0011": Line(
        "A destination has not recorded a message: another message has its bookmark there.",
        "Let each program use one name, and publish on one instance at a time.",
    ),
    "12-0012": Line(
        "The log may lack messages that other instances have, so clients are not let in. The line has the reason.",
        "Let the other instances connect: they send what they have.",
    ),
    "12-0013": Line(
        "Clients are not let in yet. The line names the instances from which not everything has come.",
        "Start these instances, or let clients in with `quire replication admit`.",
    ),
    "12-0014": Line("The log has everything that the other instances have sent. Clients are let in."),
    "12-0015": Line(
        "A command has let clients in while the log may lack messages. The line names the instances that were not heard.",
        "Start these instances: their messages are recorded when they arrive.",
    ),
    "12-0016": Line(
        "Another instance has the name of this one, and a later log.",
        "Give each instance a name that no other one has.",
    ),
    "12-0017": Line(
        "An instance had messages that were missing here. It was asked for them, and has sent them."
    ),
    "12-0018": Line(
        "The messages of another instance were not compared with those here.",
        "The reason says why. The next connection compares them again, and so does `quire replication verify --repair`.",
    ),
    "12-0019": Line(
        "Messages are missing between others of their publishers, and no instance that sends to this one has them.",
        "Start the instances that may have them, or restore their disks. If the messages are lost, use "
        "`quire replication accept`. `quire replication ls` shows `gap` until then.",
    ),
    "12-0020": Line(
        "A command has accepted that messages are missing. The line names their publishers and ranges.",
        "Publish them again under another name if they are needed.",
    ),
    "20-0001": Line(
        "The journal takes no more writes. Reading continues.",
        "Repair the cause that the line names, and restart the server.",
    ),
    "20-0002": Line(
        "The journal has no room for writes. It tries again at intervals.",
        "Free space on its disk. Publishers wait meanwhile, and nothing is lost.",
    ),
    "20-0003": Line("The journal has room again, and writes what waited."),
    "20-0004": Line("The schedule or an action archived, compressed or removed journal files."),
    "20-0005": Line("A journal file was archived, compressed or removed at the request of a client."),
    "20-0006": Line(
        "A rule of the maintenance schedule of an engine in a program failed. It is tried again after the interval. "
        "Of a server, the line is `60-0002`.",
        "Repair the cause that the line names: often a full disk, or missing rights on a directory.",
    ),
    "20-0007": Line(
        "An unfinished write at the end of the log was cut after a kill or a power failure.",
        "Nothing: no acknowledged message was in it.",
    ),
    "20-0008": Line(
        "The sequences of some publishers are lost, because `clients.ack` is damaged and older files were removed.",
        "Messages that these publishers send again are recorded again. Let programs remove such duplicates.",
    ),
    "20-0009": Line(
        "The command line cannot ask this server for maintenance by the directory of its journal.",
        "Use the URL of the server, or correct the reason that the line names.",
    ),
    "31-0001": Line(
        "A message of a queue cannot be read, because the journal is damaged.",
        "Run `quire journal verify`, and restore the file from a backup or another instance.",
    ),
    "31-0002": Line(
        "A message expired from a queue, and is a dead letter.",
        "Look at the dead letter. `quire queue redrive` sends it again.",
    ),
    "31-0003": Line("Further messages expired from a queue, and are dead letters.", "See 31-0002."),
    "31-0004": Line(
        "A message expired at a limit of its queue, which has no `dead_letter_topic`.",
        "The log still has the message. Set `dead_letter_topic` to keep such messages apart.",
    ),
    "31-0005": Line("Further messages expired at a limit of their queue.", "See 31-0004."),
    "31-0006": Line(
        "A message was cancelled repeatedly.",
        "Look for the failure of the handler. `max_cancels` and `dead_letter_topic` end the attempts.",
    ),
    "31-0007": Line("Messages were cancelled repeatedly.", "See 31-0006."),
    "31-0008": Line(
        "The settled positions of the queues could not be saved. The next start takes longer.",
        "Repair the cause that the line names. No message is lost.",
    ),
    "31-0009": Line(
        "The states of queues stay in memory, because their file cannot be extended.",
        "Free space on the disk, or give the server more memory.",
    ),
    "31-0010": Line("The state of a queue, as an administrator asked for it."),
    "31-0011": Line("A queue was created while the server ran."),
    "31-0012": Line("Settings of a queue were changed while the server ran."),
    "31-0013": Line("A queue was dropped while the server ran."),
    "31-0014": Line(
        "Messages of a queue no longer match the configuration, and are not acknowledged.",
        "Restore the settings, acknowledge the messages, or drop the queue.",
    ),
    "31-0015": Line(
        "A part of a record about the leases of a queue cannot be read.",
        "Nothing. The number of messages of the removed queue can be too high.",
    ),
    "31-0016": Line(
        "A setting of a queue has no effect.", "Remove it, or correct the settings that it depends on."
    ),
    "40-0001": Line(
        "The records of last-value topics stay in memory, because their file cannot be extended.",
        "Free space on the disk, or give the server more memory.",
    ),
    "40-0002": Line(
        "A message has no value for a field of the key of its last-value topic.",
        "Correct the publisher. All messages without the field share one record.",
    ),
    "40-0003": Line(
        "A snapshot of a last-value topic was not written. The next start takes longer.",
        "Repair the cause that the line names. No record is lost.",
    ),
    "40-0004": Line(
        "A snapshot of a last-value topic was not read. The topic is built from the log.",
        "Nothing. The start takes longer once.",
    ),
    "40-0005": Line(
        "A last-value topic lacks records, because the log does not begin at its first record.",
        "Keep the snapshots of the topic, or publish its records again.",
    ),
    "40-0006": Line(
        "A message of a last-value topic cannot be the record of its key. The log has it.",
        "The reason says what is too large or cannot be read.",
    ),
    "40-0007": Line(
        "A last-value topic with replication has more deletes than it remembers.",
        "Nothing, if all instances are connected. A message that arrives late can become a record again.",
    ),
    "40-0008": Line(
        "The record of a group of a view cannot be a message, so the view lacks it.",
        "The reason says which value is too large or cannot be written. Correct the projection of the view.",
    ),
    "40-0009": Line(
        "A snapshot of a view was not read. The view is computed from its sources.",
        "Nothing. The start takes longer once.",
    ),
    "40-0010": Line("A client has replaced the definition of a view."),
    "40-0011": Line(
        "A definition that a client has given to a view is not used. The definition of the configuration is.",
        "Nothing when the configuration was edited on purpose. Otherwise give the definition to the view again.",
    ),
    "50-0001": Line("A user administered the server or a queue (audit)."),
    "50-0002": Line("A request to the HTTP server changed something, or was refused (audit)."),
    "50-0003": Line(
        "A request to the HTTP server met a bug.", "Report it with the output of `quire doctor`."
    ),
    "60-0001": Line("A line of an action: its step `log`."),
    "60-0002": Line(
        "A step of an action failed. The rest of the run was given up.",
        "Correct what the error names. The statistics of the action count such runs as `failures`.",
    ),
    "60-0003": Line(
        "Runs of an action were dropped, because 10,000 wait. The line comes at most once a minute.",
        "Look for a step that takes long, and start the action less often.",
    ),
    "60-0004": Line("An action has run. The line is of the level `debug`."),
    "60-0005": Line("An action stops the server: its step `shutdown`."),
    "60-0006": Line(
        "An event started no action, or a step ended, because of a bug.", "Report it with the line."
    ),
    "60-0007": Line(
        "A trigger gets no messages. It tries again each second.",
        "Correct what the error names. A trigger of the log then continues at its place.",
    ),
    "60-0008": Line("Runs of actions have not ended in time at the stop of the server, and were given up."),
    "60-0009": Line(
        "Messages were delivered faster than the server could tell actions with the trigger `deliver`. The text has the "
        "number of deliveries that started no action since the last such line. There is at most one line a second.",
        "Give the trigger a filter or fewer topics.",
    ),
    "70-0001": Line(
        "The file of the statistics cannot be read. It was put aside, and a new one begins.",
        "Nothing, if the earlier statistics are not needed.",
    ),
    "70-0002": Line(
        "The figures of a sample could not be read.", "Report it with the output of `quire doctor`."
    ),
    "70-0004": Line(
        "A question of a client about the statistics met a bug.",
        "Report it with the output of `quire doctor`.",
    ),
    "70-0003": Line(
        "A sample of the statistics was not written.",
        "Repair the cause that the line names: often a full disk.",
    ),
}
