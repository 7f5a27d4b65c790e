// Looks up 64 codes of 4 bits in a table of 16 numbers, in vectors of the CPU. The upper half of a byte comes first.
#pragma once

#include <cstdint>

#include "executor/ops/vectors.h"

#if defined(__x86_64__)
// GCC 12 takes the undefined vectors of its own header for a mistake (gcc.gnu.org/PR105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace vramfit::kernels {

/// Any CPU; `pairs` bytes.
template <typename Bits>
void look_up_pairs(const std::uint8_t* codes, const Bits* table, std::int64_t pairs, Bits* into) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    into[2 * i] = table[codes[i] >> 4];
    into[2 * i + 1] = table[codes[i] & 0xF];
  }
}

#if defined(__x86_64__)

#define VRAMFIT_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define VRAMFIT_AVX2 [[gnu::target("avx2")]]

/// A byte becomes two indices, of which vpermps reads 4 bits alone.
VRAMFIT_AVX512 inline void look_up_avx512(const std::uint8_t* codes, const std::uint32_t* table, std::uint32_t* into) {
  const __m512i values = _mm512_loadu_si512(table);
  for (int i = 0; i < 4; ++i) {
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i)));
    const __m512i indices = _mm512_or_si512(_mm512_srli_epi64(bytes, 4), _mm512_slli_epi64(bytes, 32));
    _mm512_storeu_si512(into + 16 * i, _mm512_permutexvar_epi32(indices, values));
  }
}

/// vpermw reads 5 bits, so the table is there twice.
VRAMFIT_AVX512 inline void look_up_avx512(const std::uint8_t* codes, const std::uint16_t* table, std::uint16_t* into) {
  const __m512i values = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
  for (int i = 0; i < 2; ++i) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i)));
    const __m512i indices = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
    _mm512_storeu_si512(into + 32 * i, _mm512_permutexvar_epi16(indices, values));
  }
}

/// Of each half of the table, then the one that the fourth bit names.
VRAMFIT_AVX2 inline void look_up_avx2(const std::uint8_t* codes, const std::uint32_t* table, std::uint32_t* into) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table + 8));
  for (int i = 0; i < 8; ++i) {
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_loadu_si32(codes + 4 * i));
    const __m256i indices = _mm256_or_si256(_mm256_srli_epi64(bytes, 4), _mm256_slli_epi64(bytes, 32));
    const __m256 of_low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, indices));
    const __m256 of_high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, indices));
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(indices, 28));
    _mm256_storeu_ps(reinterpret_cast<float*>(into + 8 * i), _mm256_blendv_ps(of_low, of_high, is_high));
  }
}

/// Lower and upper bytes of the numbers on their own.
VRAMFIT_AVX2 inline void look_up_avx2(const std::uint8_t* codes, const std::uint16_t* table, std::uint16_t* into) {
  const __m128i byte = _mm_set1_epi16(0xFF), half = _mm_set1_epi8(0xF);
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 8));
  const __m128i lower = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
  const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i));
    const __m128i indices =
        _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), half), _mm_and_si128(bytes, half));
    const __m128i of_lower = _mm_shuffle_epi8(lower, indices), of_upper = _mm_shuffle_epi8(upper, indices);
    auto* const to = reinterpret_cast<__m128i*>(into + 16 * i);
    _mm_storeu_si128(to, _mm_unpacklo_epi8(of_lower, of_upper));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(of_lower, of_upper));
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif

}  // namespace vramfit::kernels
