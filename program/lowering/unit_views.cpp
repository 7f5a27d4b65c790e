#include "program/lowering/unit_views.h"

#include <algorithm>

namespace vramfit::program {

namespace {

bool are_alike(const Unit& a, const Unit& b) {
  const auto same = [](const UnitParameter& p, const UnitParameter& q) {
    return p.shard_elements == q.shard_elements && p.padded_elements == q.padded_elements &&
           p.gathered_offset == q.gathered_offset && p.shard_offset == q.shard_offset &&
           p.kept_elements == q.kept_elements && p.kept_offset == q.kept_offset && p.storage == q.storage &&
           p.dtype == q.dtype && p.stored_elements == q.stored_elements && p.trained_as == q.trained_as &&
           p.is_scaled == q.is_scaled && p.has_fp8_gradient == q.has_fp8_gradient && p.codes_offset == q.codes_offset &&
           p.codes_bytes == q.codes_bytes;
  };
  const auto same_storage = [](const UnitStorage& s, const UnitStorage& t) {
    return s.dtype == t.dtype && s.elements == t.elements && s.first == t.first;
  };
  return a.trainable_elements == b.trainable_elements && a.compute == b.compute && a.trained == b.trained &&
         a.gradient == b.gradient && a.reduce == b.reduce && a.sends_fp8_gradients == b.sends_fp8_gradients &&
         a.coded_elements == b.coded_elements && a.codes_bytes == b.codes_bytes &&
         std::ranges::equal(a.storages, b.storages, same_storage) &&
         std::ranges::equal(a.parameters, b.parameters, same);
}

}  // namespace

const UnitViews::Numbers& UnitViews::of(const Unit& unit) {
  // Neighbours mostly are: the latest first.
  const auto known = std::ranges::find_if(known_, [&](const auto& entry) { return are_alike(*entry.first, unit); });
  if (known != known_.end()) return known->second;
  known_.emplace_front(&unit, views_.are_kept() ? made_for(unit) : Numbers{});
  Numbers& made = known_.front().second;
  made.shards.resize(unit.storages.size(), -1);
  made.gradients.resize(unit.parameters.size(), -1);
  made.own_rows.resize(unit.parameters.size(), -1);
  made.scales.resize(unit.parameters.size(), -1);
  made.sent_scales.resize(unit.parameters.size(), -1);
  return made;
}

void UnitViews::add_coded(const Unit& unit, Numbers& made) {
  std::vector<View> masters, codes, plain;
  for (const UnitParameter& p : unit.parameters) {
    if (p.trained_as != nullptr) {
      masters.push_back(list_view(p.shard_offset, p.shard_elements, p.dtype));
      codes.push_back(list_view(p.codes_offset, p.codes_bytes, Dtype::u8));
    } else if (p.storage == 0) {
      plain.push_back(list_view(p.shard_offset - unit.coded_elements, p.shard_elements, p.dtype));
    }
  }
  made.masters = views_.number(masters);
  made.codes = views_.number(codes);
  made.all_codes = views_.number(list_view(0, unit.codes_bytes, Dtype::u8));
  made.plain = views_.number(plain);
  made.plain_in_shard =
      views_.number(list_view(unit.coded_elements, plain_elements(unit), unit.storages.front().dtype));
}

UnitViews::Numbers UnitViews::made_for(const Unit& unit) {
  const auto list = [&](auto&& view_of) {
    std::vector<View> views;
    for (const UnitParameter& p : unit.parameters) views.push_back(view_of(p));
    return views_.number(views);
  };
  const bool is_kept = layout_.reshard_ranks > 0;
  const std::int64_t rank = layout_.shards == 1 ? 0 : coords_.shard,
                     group_rank = is_kept ? rank % layout_.reshard_ranks : 0;
  Numbers made;
  std::vector<View> own;
  for (std::size_t storage = 0; storage < unit.storages.size(); ++storage) {
    std::vector<View> shard;
    for (const UnitParameter& p : unit.parameters) {
      if (static_cast<std::size_t>(p.storage) != storage) continue;
      shard.push_back(list_view(storage_offset(unit, p), p.stored_elements, p.dtype));
      own.push_back(list_view(p.gathered_offset + rank * p.shard_elements, p.shard_elements, unit.compute));
    }
    made.shards.push_back(views_.number(shard));
  }
  made.own = views_.number(own);
  made.gathered =
      list([&](const UnitParameter& p) { return list_view(p.gathered_offset, p.padded_elements, unit.compute); });
  if (is_kept) {
    made.kept = list([&](const UnitParameter& p) { return list_view(p.kept_offset, p.kept_elements, unit.compute); });
    made.slices = list([&](const UnitParameter& p) {
      return list_view(p.gathered_offset + group_rank * p.kept_elements, p.kept_elements, unit.compute);
    });
  }
  made.trained = views_.number(list_view(0, unit.trainable_elements, unit.trained));
  made.all_gradients = views_.number(list_view(0, unit.trainable_elements, unit.gradient));
  if (unit.scales > 0) made.beside_scaled = views_.number(list_view(0, trained_beside_scaled(unit), unit.trained));
  if (unit.codes_bytes > 0) add_coded(unit, made);
  if (unit.fp8_gradients > 0) {
    made.codes_of_replica = views_.number(
        list_view(checked_mul(coords_.replicate, unit.fp8_gradient_elements), unit.fp8_gradient_elements, Dtype::u8));
    made.scales_of_replica =
        views_.number(list_view(checked_mul(coords_.replicate, unit.fp8_gradients), unit.fp8_gradients, Dtype::f32));
  }
  for (std::int64_t slot = 0; unit.sends_fp8_gradients && slot < unit.fp8_gradients; ++slot) {
    made.sent_scales.push_back(views_.number(
        View{.offset = slot, .rows = layout_.shards, .columns = 1, .pitch = unit.fp8_gradients, .dtype = Dtype::f32}));
  }
  std::int64_t scales = 0;
  for (const UnitParameter& p : unit.parameters) {
    made.gradients.push_back(views_.number(
        p.has_fp8_gradient ? list_view(p.shard_offset, p.shard_elements, Dtype::u8)
                           : list_view(p.shard_offset - unit.fp8_gradient_elements, p.shard_elements, unit.gradient)));
    const bool has_scale = p.is_scaled || p.has_fp8_gradient;  // at the same place of each list
    made.scales.push_back(has_scale ? views_.number(list_view(scales++, 1, Dtype::f32)) : -1);
    const bool is_whole = layout_.shards == 1;  // in whatever dtype it is
    made.own_rows.push_back(
        is_whole ? -1 : views_.number(list_view(rank * p.shard_elements, p.shard_elements, unit.reduce)));
  }
  return made;
}

}  // namespace vramfit::program
