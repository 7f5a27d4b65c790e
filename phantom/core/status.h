// What a stand-in's call ends with. Values are those that CUDA's runtime and driver share, so that both return them as
// they are.
#pragma once

namespace vramfit::phantom {

enum class Status : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  invalid_configuration = 9,     // of the runtime alone
  invalid_device_function = 98,  // of the runtime alone
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  not_mapped = 211,
  invalid_ptx = 218,
  invalid_source = 300,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  not_permitted = 800,
  not_supported = 801,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_unmatched = 903,
  unknown = 999,
};

}  // namespace vramfit::phantom
