// Sends every library that would reach a GPU to its stand-in, at the moment it is opened (rtld-audit(7)). It runs in a
// namespace of its own before anything else of the program, so it uses the C library alone.
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "phantom/missing.h"

namespace {

constexpr std::size_t kLongestPath = 4096;

// The folder of the stand-ins, which vramfit passes; "" if none. A program may empty its environment later on.
char kept_folder[kLongestPath];

void keep_folder() {
  const char* given = std::getenv("VRAMFIT_PHANTOM_LIB");
  const int length = given == nullptr ? 0 : std::snprintf(kept_folder, sizeof kept_folder, "%s", given);
  if (length >= static_cast<int>(sizeof kept_folder)) kept_folder[0] = '\0';
}

const char* folder() { return kept_folder[0] == '\0' ? nullptr : kept_folder; }

// Where the linker looks without a path, the stand-in's own name is what is compared; `cuda.so` is what compilers link.
const char* stand_in_name(const char* base) {
  if (std::strcmp(base, "libcuda.so") == 0) return "libcuda.so.1";
  if (std::strcmp(base, "libnvidia-ml.so") == 0) return "libnvidia-ml.so.1";
  return base;
}

// Majors lie in folders of their own, as some libraries have the same name in both.
char* find(const char* base) {
  static char path[kLongestPath];
  for (const char* set : {"", "cuda13/", "cuda12/"}) {
    const int length = std::snprintf(path, sizeof path, "%s/%s%s", folder(), set, stand_in_name(base));
    if (length > 0 && static_cast<std::size_t>(length) < sizeof path && access(path, R_OK) == 0) return path;
  }
  return nullptr;
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

/// The stand-in of a library's name or path.
char* stand_in(const char* name) {
  const char* base = base_name(name);
  return folder() != nullptr && std::strncmp(base, "lib", 3) == 0 ? find(base) : nullptr;
}

}  // namespace

bool vramfit::phantom::has_stand_in(const char* name) { return stand_in(name) != nullptr; }

extern "C" __attribute__((visibility("default"))) unsigned int la_version(unsigned int version) {
  keep_folder();
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

extern "C" __attribute__((visibility("default"))) char* la_objsearch(const char* name, std::uintptr_t* /*cookie*/,
                                                                     unsigned int /*flag*/) {
  if (char* path = stand_in(name)) return path;
  return const_cast<char*>(name);  // NOLINT(cppcoreguidelines-pro-type-const-cast): the interface's type
}

extern "C" __attribute__((visibility("default"))) unsigned int la_objopen(link_map* object, Lmid_t place,
                                                                          std::uintptr_t* /*cookie*/) {
  if (place == LM_ID_BASE) vramfit::phantom::object_opened(object);
  return 0;  // no calls are watched
}

extern "C" __attribute__((visibility("default"))) unsigned int la_objclose(std::uintptr_t* cookie) {
  vramfit::phantom::object_closed(reinterpret_cast<const link_map*>(*cookie));
  return 0;
}

extern "C" __attribute__((visibility("default"))) void la_activity(std::uintptr_t* /*cookie*/, unsigned int what) {
  if (what == LA_ACT_CONSISTENT) vramfit::phantom::objects_complete();
}
