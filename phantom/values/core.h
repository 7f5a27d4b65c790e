/* What core offers to the library that computes values (docs/values.md). Plain C: that library is compiled once for
 * each version of torch, core once for all. Addresses are of device memory, sizes in bytes. */
#pragma once

#include <cstdint>

/* What a value rests on, when the program could not know it. Bits, joined by everything that is computed from it. */
enum VramfitAssumption : std::uint32_t {
  VRAMFIT_ASSUMES_FINITE = 1,    /* losses, gradients and activations have no inf or nan */
  VRAMFIT_ASSUMES_ROUTING = 2,   /* which entries of unknown scores are the largest */
  VRAMFIT_ASSUMES_SELECTION = 4, /* comparisons of unknown numbers, and how many entries an unknown mask selects */
  VRAMFIT_ASSUMES_SAMPLED = 8,   /* drawn by a generator of vramfit's own */
  VRAMFIT_ASSUMES_VALUE = 16,    /* 0.5, 1 or true, because nothing else is known */
  VRAMFIT_FROM_GHOSTS = 256      /* of a collective with ranks that have no process, or computed from it */
};
inline constexpr std::int64_t VRAMFIT_UNKNOWN = -1;

struct VramfitValueSettings {
  std::int32_t is_on;         /* 0: nothing is computed */
  std::int32_t worst_routing; /* all rows choose the same entries; otherwise they take turns */
  std::int64_t integer_bytes; /* largest tensor of integers or booleans that is computed */
  std::int64_t float_bytes;   /* the same of floating numbers */
  double selected_share;      /* of an unknown mask, 0 to 1 */
  std::int64_t routing_seed;  /* rows draw their entries, by this number and the layer's; -1: they don't */
};

struct VramfitRead {
  const char* kind;         /* "size of nonzero", "item", "copy to the host" */
  std::int64_t assumptions; /* VRAMFIT_UNKNOWN, or bits */
  std::int64_t bytes;
  std::int32_t steers; /* a size, an index or a branch follows from it */
  const char* place;   /* "train.py:12" */
};

#define VRAMFIT_VALUES extern "C" __attribute__((visibility("default")))

VRAMFIT_VALUES VramfitValueSettings vramfit_value_settings();
/* is_on of it. */
VRAMFIT_VALUES std::int32_t vramfit_values_are_wanted();
/* Assumptions that the range rests on, 0 if it is certain, or VRAMFIT_UNKNOWN. */
VRAMFIT_VALUES std::int64_t vramfit_value_known(const void* address, std::int64_t bytes);
/* The range now holds what it holds by these assumptions, or something unknown. */
VRAMFIT_VALUES void vramfit_value_set(void* address, std::int64_t bytes, std::int64_t assumptions);
/* The range as the host can read and write it; null if it is larger than the limit or not a card's. */
VRAMFIT_VALUES void* vramfit_value_view(void* address, std::int64_t bytes, std::int64_t limit_bytes);
/* An operator begins on this thread; see core/operations.h. Nonzero: begun, and to be ended. */
VRAMFIT_VALUES std::int32_t vramfit_operation_begin(std::int64_t real_bytes);
/* Nonzero: it launched something itself, so what it wrote is not known by core. */
VRAMFIT_VALUES std::int32_t vramfit_operation_end();
/* The next count or boolean that this thread copies to the host, in 1, 4 or 8 bytes, is this one. */
VRAMFIT_VALUES void vramfit_answer_leave(std::int64_t count);
/* Takes back what nobody asked for. Nonzero: there was such an answer. */
VRAMFIT_VALUES std::int32_t vramfit_answer_withdraw();
/* The name of the kernel that made unknown what begins at this address, or null. */
VRAMFIT_VALUES const char* vramfit_value_writer(const void* address);
/* The range is unknown, because of the kernel of that name. */
VRAMFIT_VALUES void vramfit_value_written_by(void* address, std::int64_t bytes, const char* kernel);
/* Peaks of the caching allocator on the thread's card, since anybody last reset them. */
VRAMFIT_VALUES void vramfit_peaks_seen(std::int64_t requested_bytes, std::int64_t allocated_bytes);
/* Into the process record. */
VRAMFIT_VALUES void vramfit_value_read(const VramfitRead* read);
