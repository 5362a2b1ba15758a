//! The functions of `quire_spark::abi` under the names that the JVM looks for
//! (`docs/internals/spark-reader.md`).
//!
//! Only numbers cross the border, so no function uses its `JNIEnv`. `java/quire/Core.java` declares
//! the same functions.
#![allow(unsafe_code)]

use std::ffi::c_void;

use quire_spark::abi;

/// Exports functions for the native methods of the class `quire.Core`.
macro_rules! native {
    ($($exported:ident = $name:ident($($argument:ident),*);)*) => {
        $(
            /// See the function of `quire_spark::abi`.
            ///
            /// # Safety
            /// That of the function of `quire_spark::abi`: `Core.java` keeps it.
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $exported(_: *mut c_void, _: *mut c_void, $($argument: i64),*) -> i64 {
                #[allow(unused_unsafe)]
                // SAFETY: the promise of the caller.
                unsafe {
                    abi::$name($($argument),*)
                }
            }
        )*
    };
}

native! {
    Java_quire_Core_version = version(answer);
    Java_quire_Core_frame = frame(options, size, answer);
    Java_quire_Core_schema = schema(frame, size, answer);
    Java_quire_Core_check = check(read, size, answer);
    Java_quire_Core_push = push(read, size, answer);
    Java_quire_Core_aggregate = aggregate(read, size, answer);
    Java_quire_Core_statistics = statistics(read, size, answer);
    Java_quire_Core_plan = plan(read, size, answer);
    Java_quire_Core_scanOpen = scan_open(task, size, answer);
    Java_quire_Core_scanNext = scan_next(handle, columns, room, answer);
    Java_quire_Core_scanWarnings = scan_warnings(handle, answer);
    Java_quire_Core_scanMetrics = scan_metrics(handle, metrics, answer);
    Java_quire_Core_scanCancel = scan_cancel(handle);
    Java_quire_Core_scanClose = scan_close(handle);
    Java_quire_Core_streamOpen = stream_open(read, size, answer);
    Java_quire_Core_streamInitial = stream_initial(handle, answer);
    Java_quire_Core_streamLimit = stream_limit(handle, answer);
    Java_quire_Core_streamAvailableNow = stream_available_now(handle, answer);
    Java_quire_Core_streamLatest = stream_latest(handle, request, size, answer);
    Java_quire_Core_streamNewest = stream_newest(handle, answer);
    Java_quire_Core_streamPlan = stream_plan(handle, request, size, answer);
    Java_quire_Core_streamCommit = stream_commit(handle, offset, size, answer);
    Java_quire_Core_streamClose = stream_close(handle);
    Java_quire_Core_answerFree = answer_free(address, size);
}
