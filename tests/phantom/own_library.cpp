// A library of the program's own, whose names begin like CUDA's (missing_test.py).
extern "C" __attribute__((visibility("default"))) int cudaOfTheProgramItself() { return 42; }
