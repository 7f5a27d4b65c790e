// A program that was made for newer GPU libraries than the stand-ins know (missing_test.py).
extern "C" {
int nvshmem_newer_than_the_stand_in(int argument);  // with a version node that the stand-in lacks
int ncclNewerThanTheStandIn();
__attribute__((weak)) int cudaNewerAndOptional();
int cudaOfTheProgramItself();

__attribute__((visibility("default"))) int call_nvshmem() { return nvshmem_newer_than_the_stand_in(3); }
__attribute__((visibility("default"))) int call_nccl() { return ncclNewerThanTheStandIn(); }
__attribute__((visibility("default"))) int has_optional() { return &cudaNewerAndOptional != nullptr ? 1 : 0; }
__attribute__((visibility("default"))) int call_own() { return cudaOfTheProgramItself(); }
}
