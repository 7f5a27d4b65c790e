// A GPU library that is newer than its stand-in: missing_test.py's program is linked to it, and gets the stand-in.
extern "C" __attribute__((visibility("default"))) int nvshmem_newer_than_the_stand_in(int) { return 77; }
