// What generated functions consist of. Each stand-in has its own copy; handles are nothing but addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace vramfit::phantom::generated {

/// A card has more to do, on a stream or on the one that a handle was given: late events come nearer, and a graph that
/// is being captured has one kernel more.
void computing_on(const void* stream);
void computing(const void* handle);
/// A call got this pointer and may write there. A pointer to pointers on the card leads anywhere.
void touch_address(const void* address);
void touch_all_if_on_card(const void* address);
bool is_on_card(const void* address);
bool is_ours(const void* address);
/// A call's result in plain host memory: nobody computed it, so it is 0, and the record counts it as an uncertain read.
void unknown_result(void* result, std::size_t bytes, const char* function);

/// Where a call says whether it worked, for each of `count` problems: it did, for all that is known.
void succeed(int* verdict, std::int64_t count);

/// A new handle, different from every other; and the end of one. Addresses that are no handle are left alone.
void* new_handle();
void delete_handle(const void* handle);

/// Values that a program gives a handle, and reads back: by the setter's name and the argument's position. `fetch`
/// leaves a value that was never given as it finds it.
void store_bytes(const void* handle, const char* key, int index, std::span<const std::byte> value);
void fetch_bytes(const void* handle, const char* key, int index, std::span<std::byte> value);

/// The record counts that a program asked for what is not there.
void unknown(const char* what);

/// The bytes that a library is to work in, as the stand-in answers: 0, since only the real one knows them. They are at
/// most `bound_bytes` (-1: no bound is known), which is what the setting workspaces=bound answers, as far as the card
/// has room. `is_kept`: the library takes them itself, until it gives the plan back.
std::int64_t workspace(const char* what, std::int64_t bound_bytes, bool is_kept = false);

/// Numbers that BLAS calls return through a pointer, complex ones included.
template <class T>
constexpr bool is_number() {
  if constexpr (std::is_class_v<T>) {
    return requires(T number) { number.x + number.y; };
  } else {
    return std::is_arithmetic_v<T>;
  }
}

/// What a pointer leads to: a pointer to const is only read.
template <class T>
void touch_pointee(T* pointer, const char* function) {
  if constexpr (std::is_pointer_v<T>) {
    if constexpr (!std::is_const_v<std::remove_pointer_t<T>>) touch_all_if_on_card(pointer);
  } else if constexpr (!std::is_const_v<T> && !std::is_function_v<T>) {
    touch_address(pointer);
    if constexpr (is_number<T>()) {
      if (pointer != nullptr && !is_ours(pointer)) unknown_result(pointer, sizeof(T), function);
    }
  }
}

template <class T>
void touch(T value, const char* function) {
  if constexpr (std::is_pointer_v<T>) {
    touch_pointee(value, function);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == sizeof(void*)) {
    touch_address(reinterpret_cast<const void*>(value));  // NOLINT(performance-no-int-to-ptr)
  }
}

/// True if the argument is where a handle goes.
template <class T>
bool create(T argument) {
  if constexpr (std::is_pointer_v<T>) {
    using Handle = std::remove_pointer_t<T>;
    if constexpr (std::is_pointer_v<Handle> && !std::is_const_v<Handle>) {
      if (argument != nullptr) *argument = static_cast<Handle>(new_handle());
      return true;
    }
  }
  return false;
}

template <class T>
void destroy(T handle) {
  if constexpr (std::is_pointer_v<T>) delete_handle(handle);
}

/// Most handles are pointers, some libraries number them.
template <class H>
const void* as_handle(H handle) {
  if constexpr (std::is_pointer_v<H>) {
    return handle;
  } else {
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(handle));  // NOLINT(performance-no-int-to-ptr)
  }
}

template <class H, class T>
void store(H handle, const char* key, int index, T value) {
  store_bytes(as_handle(handle), key, index, std::as_bytes(std::span(&value, 1)));
}

template <class H, class T>
void fetch(H handle, const char* key, int index, T* value) {
  if (value == nullptr) return;
  *value = T{};
  fetch_bytes(as_handle(handle), key, index, std::as_writable_bytes(std::span(value, 1)));
}

template <class T>
void zero(T number) {
  if constexpr (std::is_pointer_v<T>) {
    using Number = std::remove_pointer_t<T>;
    if constexpr (std::is_arithmetic_v<Number> && !std::is_const_v<Number>) {
      if (number != nullptr && !is_on_card(number)) *number = Number{};
    }
  }
}

}  // namespace vramfit::phantom::generated
