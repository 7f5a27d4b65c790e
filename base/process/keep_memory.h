// What becomes of memory that a short-lived process frees.
#pragma once

namespace vramfit {

/// From here on freed memory stays with the process, so that what is allocated next finds it mapped. By default glibc
/// gives large blocks back to the kernel, which maps them page by page again: for programs of large jobs, made one
/// after the other, that takes longer than making them. The heap is asked for in large pages, too. Does nothing where
/// malloc is another one.
void keep_freed_memory();

/// The same large pages for what the calling thread allocates, which has its own heap. Once, when it begins; nothing
/// unless keep_freed_memory() was called.
void ask_for_large_pages_in_thread();

}  // namespace vramfit
