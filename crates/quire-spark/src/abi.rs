//! The functions that a library for another language exports (`docs/internals/spark-reader.md`,
//! "Functions").
//!
//! Arguments and results are numbers of 64 bits: values, handles, and addresses with sizes. Panics
//! end here.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use parking_lot::Mutex;
use quire_types::Timestamp;

use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::frame::Frame;
use crate::options;
use crate::read::Read;
use crate::stream::Stream;
use crate::task::{TaskControl, TaskScan};

/// Every function returns this number after a failure.
pub const FAILED: i64 = -1;

/// A text that Rust returns to the caller. It is valid until [`answer_free`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer {
    /// Where its bytes are.
    pub address: i64,
    /// Their number.
    pub size: i64,
}

/// A scan that a caller has open.
struct OpenScan {
    control: Arc<TaskControl>,
    scan: Mutex<TaskScan>,
}

/// Open scans and streams, by the numbers that callers have.
struct Handles<T> {
    open: BTreeMap<i64, Arc<T>>,
    last: i64,
}

impl<T> Handles<T> {
    const fn new() -> Self {
        Handles { open: BTreeMap::new(), last: 0 }
    }
}

static SCANS: Mutex<Handles<OpenScan>> = Mutex::new(Handles::new());
static STREAMS: Mutex<Handles<Mutex<Stream>>> = Mutex::new(Handles::new());

fn add<T>(handles: &Mutex<Handles<T>>, item: T) -> i64 {
    let mut handles = handles.lock();
    handles.last += 1;
    let handle = handles.last;
    handles.open.insert(handle, Arc::new(item));
    handle
}

fn get<T>(handles: &Mutex<Handles<T>>, handle: i64) -> Outcome<Arc<T>> {
    let found = handles.lock().open.get(&handle).cloned();
    found.ok_or_else(|| Failure::new("bad_option", format!("handle {handle} is not open")))
}

fn remove<T>(handles: &Mutex<Handles<T>>, handle: i64) -> i64 {
    // The item is dropped after the lock.
    let removed = handles.lock().open.remove(&handle);
    i64::from(catch_unwind(AssertUnwindSafe(|| drop(removed))).is_err()) * FAILED
}

/// The version of quire.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn version(answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || Ok(env!("CARGO_PKG_VERSION").into())) }
}

/// Reads the options and decides the range of a batch read.
///
/// # Safety
/// The text is at its address; `answer` is the address of an [`Answer`].
pub unsafe fn frame(options: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&Frame::new(&options::from_json(text(options, size)?)?, wall())?)) }
}

/// The schema of a frame.
///
/// # Safety
/// As [`frame`].
pub unsafe fn schema(frame: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || Ok(Frame::from_json(text(frame, size)?)?.schema()?.to_json())) }
}

/// Checks the columns and the filter of a read.
///
/// # Safety
/// As [`frame`].
pub unsafe fn check(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || self::read(read, size)?.check(wall()).map(|()| String::new())) }
}

/// Returns whether the scan takes each condition.
///
/// # Safety
/// As [`frame`].
pub unsafe fn push(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&self::read(read, size)?.push()?)) }
}

/// The schema of partial aggregates, or `null`.
///
/// # Safety
/// As [`frame`].
pub unsafe fn aggregate(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        texts(answer, || {
            let schema = self::read(read, size)?.aggregated()?;
            Ok(schema.map_or_else(|| "null".to_owned(), |schema| schema.to_json()))
        })
    }
}

/// The most that the scan reads.
///
/// # Safety
/// As [`frame`].
pub unsafe fn statistics(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&self::read(read, size)?.statistics(wall())?)) }
}

/// Cuts a read into tasks.
///
/// # Safety
/// As [`frame`].
pub unsafe fn plan(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&self::read(read, size)?.plan(wall())?)) }
}

/// Opens a task. Returns its handle.
///
/// # Safety
/// As [`frame`].
pub unsafe fn scan_open(task: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        numbers(answer, || {
            let scan = TaskScan::open(text(task, size)?)?;
            Ok(add(&SCANS, OpenScan { control: scan.control(), scan: Mutex::new(scan) }))
        })
    }
}

/// Builds the next batch and writes its column numbers. Returns its rows, 0 at the end.
///
/// # Safety
/// There are `room` numbers of 64 bits at `columns`; `answer` is the address of an [`Answer`].
pub unsafe fn scan_next(handle: i64, columns: i64, room: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        numbers(answer, || {
            let open = get(&SCANS, handle)?;
            open.scan.lock().next_columns(room_at(columns, room)?)
        })
    }
}

/// The warnings since the last call.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn scan_warnings(handle: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&get(&SCANS, handle)?.scan.lock().warnings())) }
}

/// Writes the six numbers of [`crate::task::Metrics`].
///
/// # Safety
/// There are 6 numbers of 64 bits at `metrics`; `answer` is the address of an [`Answer`].
pub unsafe fn scan_metrics(handle: i64, metrics: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        numbers(answer, || {
            room_at(metrics, 6)?.copy_from_slice(&get(&SCANS, handle)?.control.metrics());
            Ok(0)
        })
    }
}

/// Ends the scan before its next block. No effect on a closed scan.
pub fn scan_cancel(handle: i64) -> i64 {
    if let Ok(open) = get(&SCANS, handle) {
        open.control.cancel();
    }
    0
}

/// Frees the scan and its batch. No effect on a closed scan.
pub fn scan_close(handle: i64) -> i64 {
    scan_cancel(handle);
    remove(&SCANS, handle)
}

/// Moves the scan into an `ArrowArrayStream`. The handle stays open for warnings and metrics, and
/// can cancel the stream.
///
/// # Safety
/// An empty or uninitialized `ArrowArrayStream` is at `stream`; `answer` is the address of an
/// [`Answer`].
pub unsafe fn scan_stream(handle: i64, stream: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        numbers(answer, || {
            let batches = get(&SCANS, handle)?.scan.lock().take_batches()?;
            std::ptr::write(stream as *mut FFI_ArrowArrayStream, FFI_ArrowArrayStream::new(batches));
            Ok(0)
        })
    }
}

/// Opens a stream. Returns its handle.
///
/// # Safety
/// As [`frame`].
pub unsafe fn stream_open(read: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        numbers(answer, || {
            let stream = Stream::new(self::read(read, size)?, clock::now())?;
            Ok(add(&STREAMS, Mutex::new(stream)))
        })
    }
}

/// The offset at which the query begins.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn stream_initial(handle: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || get(&STREAMS, handle)?.lock().initial(wall())?.to_json()) }
}

/// The limit of a batch without another one.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn stream_limit(handle: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || json(&get(&STREAMS, handle)?.lock().default_limit())) }
}

/// Ends the query at the present end of the log.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn stream_available_now(handle: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || get(&STREAMS, handle)?.lock().available_now().map(|()| String::new())) }
}

/// The end of the next batch; no text when there is none.
///
/// # Safety
/// As [`frame`].
pub unsafe fn stream_latest(handle: i64, request: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        texts(answer, || {
            let request = parse(text(request, size)?)?;
            let offset = get(&STREAMS, handle)?.lock().latest(&request, clock::now())?;
            offset.map_or_else(|| Ok(String::new()), |offset| offset.to_json())
        })
    }
}

/// The ends of the journals, as an offset.
///
/// # Safety
/// `answer` is the address of an [`Answer`].
pub unsafe fn stream_newest(handle: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { texts(answer, || get(&STREAMS, handle)?.lock().newest(clock::now().instant)?.to_json()) }
}

/// Cuts a batch into tasks.
///
/// # Safety
/// As [`frame`].
pub unsafe fn stream_plan(handle: i64, request: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        texts(answer, || {
            let request = parse(text(request, size)?)?;
            json(&get(&STREAMS, handle)?.lock().plan(&request, wall())?)
        })
    }
}

/// Notes that a batch is complete.
///
/// # Safety
/// As [`frame`].
pub unsafe fn stream_commit(handle: i64, offset: i64, size: i64, answer: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        texts(answer, || {
            let offset = parse(text(offset, size)?)?;
            get(&STREAMS, handle)?.lock().commit(&offset).map(|()| String::new())
        })
    }
}

/// Frees the stream. No effect on a closed stream.
pub fn stream_close(handle: i64) -> i64 {
    remove(&STREAMS, handle)
}

/// Frees the text of an [`Answer`].
///
/// # Safety
/// A function of this module returned the text, and it was not freed before.
pub unsafe fn answer_free(address: i64, size: i64) -> i64 {
    if size > 0 {
        let bytes = std::ptr::slice_from_raw_parts_mut(address as *mut u8, size as usize);
        // SAFETY: `give` made it of a box of this size.
        drop(unsafe { Box::from_raw(bytes) });
    }
    0
}

unsafe fn texts(answer: i64, work: impl FnOnce() -> Outcome<String>) -> i64 {
    let worked = caught(work);
    let status = if worked.is_ok() { 0 } else { FAILED };
    let text = worked.unwrap_or_else(|failure| text_of(&failure));
    // SAFETY: the promise of the caller of the public function.
    unsafe { give(answer, text) };
    status
}

unsafe fn numbers(answer: i64, work: impl FnOnce() -> Outcome<i64>) -> i64 {
    let worked = caught(work);
    let (status, text) = match worked {
        Ok(number) => (number, String::new()),
        Err(failure) => (FAILED, text_of(&failure)),
    };
    // SAFETY: the promise of the caller of the public function.
    unsafe { give(answer, text) };
    status
}

fn caught<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<&str>().map(ToString::to_string);
        let reason = reason.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Failure::internal(reason.unwrap_or_else(|| "a panic without a text".into())))
    })
}

fn text_of(failure: &Failure) -> String {
    // A struct of texts and numbers always has a JSON form.
    serde_json::to_string(failure).unwrap_or_default()
}

unsafe fn give(answer: i64, text: String) {
    let bytes = text.into_bytes().into_boxed_slice();
    let size = bytes.len() as i64;
    let address = if size == 0 { 0 } else { Box::into_raw(bytes).cast::<u8>() as i64 };
    // SAFETY: the promise of the caller of the public function.
    unsafe { std::ptr::write(answer as *mut Answer, Answer { address, size }) };
}

/// The text at an address.
unsafe fn text<'a>(address: i64, size: i64) -> Outcome<&'a str> {
    if size <= 0 {
        return Ok("");
    }
    // SAFETY: the promise of the caller of the public function.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size as usize) };
    std::str::from_utf8(bytes).map_err(|error| Failure::option(format!("the text is not UTF-8: {error}")))
}

unsafe fn room_at<'a>(address: i64, size: i64) -> Outcome<&'a mut [i64]> {
    if size <= 0 {
        return Ok(&mut []);
    }
    // SAFETY: the promise of the caller of the public function.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut i64, size as usize) })
}

unsafe fn read(address: i64, size: i64) -> Outcome<Read> {
    // SAFETY: the promise of the caller of the public function.
    Read::from_json(unsafe { text(address, size) }?)
}

fn parse<T: for<'de> serde::Deserialize<'de>>(text: &str) -> Outcome<T> {
    serde_json::from_str(text).map_err(|error| Failure::option(format!("{text:?} cannot be read: {error}")))
}

fn json(value: &impl serde::Serialize) -> Outcome<String> {
    serde_json::to_string(value).map_err(|error| Failure::internal(error.to_string()))
}

fn wall() -> Timestamp {
    clock::now().wall
}
