// Calls with several outputs, with scratch of their own, or in place: embedding, cross entropy, sums.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
#include "program/model_flops.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::embedding(const Tensor& ids, int parameter, std::int64_t rows, std::int64_t width, Dtype dtype) {
  return repeated_embedding(ids, 1, {.parameter = parameter, .rows = rows, .width = width, .dtype = dtype});
}

Tensor Torch::repeated_embedding(const Tensor& ids, std::int64_t times, const Table& table) {
  const auto all_of = [this, times](const Tensor& once) {
    if (times == 1) return once;
    return computed("aten::clone", {reads(once)},
                    temporary(checked_mul(once.elements, times), Dtype::i64, "repeated ids"));
  };
  Tensor out;
  {
    const Tensor all = all_of(ids);
    out = value(checked_mul(all.elements, table.width), table.dtype, "embedding");
    heap_.run("aten::embedding", {reads(all), reads_parameter(table.parameter), writes(out)},
              {.bytes = 2 * heap_.bytes_of({writes(out)})});  // rows of the table are read, not all of it
  }
  return record(std::move(out), {edge_to(table.parameter, checked_mul(table.rows, table.width))},
                {save(ids, is_trained(table.parameter))},
                [this, all_of, table](Tensor& g, const std::vector<Tensor>& kept) {
                  const Tensor all = all_of(kept[0]);
                  return std::vector<Tensor>{embedding_gradient(g, all, table.rows, table.width)};
                });
}

/// embedding_dense_backward. Few ids: added by atomics. Many: sorted, cut into segments, summed in fp32.
Tensor Torch::embedding_gradient(const Tensor& gradient, const Tensor& read, std::int64_t rows, std::int64_t width) {
  const std::int64_t ids = gradient.elements / width;
  const auto table = [&] {
    return heap_.make(checked_mul(rows, width), gradient.dtype, Category::gradients, "weight gradient");
  };
  const auto summed = [&](Tensor result) {
    const Accesses accesses{reads(gradient), reads(read), writes(result)};
    // The table is filled with zeros. Sorting, cutting into segments and summing them are a dozen small kernels.
    heap_.run("aten::embedding_dense_backward", accesses,
              {.launches = ids <= kUnsortedEmbeddingRows ? 2 : 12, .bytes = heap_.bytes_of(accesses)});
    return result;
  };
  if (ids <= kUnsortedEmbeddingRows) return summed(table());
  // Many ids for each row are added up otherwise. How many are many differs by card: seen with up to 64 rows, with 100
  // and 512 on some, with 2000 on none.
  const bool is_added_up = rows <= 64;
  if (!is_added_up && rows < 2000) throw NotModelled("the embedding's gradient of few rows over many tokens");
  const std::int64_t distinct = std::min(ids, rows);
  const auto indices = [&](const char* what) { return temporary(ids, Dtype::i64, what); };
  const auto scratch = [&](Bytes bytes) { const Tensor t = temporary(bytes.n, Dtype::u8, "cub scratch"); };
  const Tensor sorted = indices("sorted ids");
  const Tensor order = indices("order of ids");
  {
    const Tensor range = indices("range");
    scratch(embedding_sort_scratch(ids, device_));
  }
  Tensor result = table();
  const Tensor offsets = indices("segment offsets");
  const Tensor count = temporary(1, Dtype::i64, "number of segments");
  {
    const Tensor ones = indices("ones");
    scratch(embedding_unique_scratch(ids, device_));
  }
  const Tensor partials = temporary(distinct, Dtype::i64, "partials of segments");
  const Tensor partial_offsets = temporary(distinct, Dtype::i64, "offsets of partials");
  scratch(scan_scratch(distinct));
  const Tensor total = temporary(1, Dtype::i64, "number of partials");
  const std::int64_t sums = embedding_partials(ids, distinct);
  const Tensor starts = temporary(sums, Dtype::i64, "starts of partials");
  const Tensor partial_sums = is_added_up ? temporary(sums, Dtype::i64, "segments of partials")
                                          : temporary(checked_mul(sums, width), Dtype::f32, "partial sums");
  const std::int64_t widened = is_added_up && gradient.dtype != Dtype::f32 ? result.elements : 0;
  const Tensor wide = temporary(widened, Dtype::f32, "sums of rows");
  return summed(std::move(result));
}

/// Autocast leaves log_softmax as it is, which cross_entropy asks for a type, and computes nll_loss in fp32.
Tensor Torch::cross_entropy(const Tensor& logits, const Tensor& labels, bool do_labels_lie_apart) {
  const std::int64_t copied = do_labels_lie_apart ? labels.elements : 0;
  Tensor log_probabilities = computed("aten::_log_softmax", {reads(logits)}, make_like(logits, "log_softmax"));
  std::vector<Saved> result{save(log_probabilities)};
  log_probabilities =
      record(std::move(log_probabilities), {edge_to(logits)}, std::move(result),
             [this](Tensor& g, const std::vector<Tensor>& kept) {
               return std::vector<Tensor>{computed("aten::_log_softmax_backward_data", {reads(g), reads(kept[0])},
                                                   make_like(g, "log_softmax gradient"))};
             });
  if (autocast_) log_probabilities = cast(log_probabilities, Dtype::f32);
  std::vector<Saved> saved{save(log_probabilities)};
  const Dtype dtype = log_probabilities.dtype;
  Tensor loss = value(1, dtype, "loss");
  const Tensor weight = value(1, dtype, "loss weight");
  Tensor in_order = temporary(copied, Dtype::i64, "labels, one after the other");
  heap_.run("aten::nll_loss_forward", {reads(log_probabilities), reads(labels), writes(loss), writes(weight)},
            {.bytes = 2 * heap_.bytes_of({reads(labels)})});  // one number of each row
  in_order = {};
  saved.push_back(save(weight));
  saved.push_back(save(labels));
  return record(std::move(loss), {edge_to(log_probabilities)}, std::move(saved),
                [this, n = logits.elements, dtype, copied](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor gradient = value(n, dtype, "nll_loss gradient");
                  const Tensor labels_in_order = temporary(copied, Dtype::i64, "labels, one after the other");
                  return std::vector<Tensor>{computed("aten::nll_loss_backward",
                                                      {reads(g), reads(kept[2]), reads(kept[1])}, std::move(gradient))};
                });
}

/// Partial results are booleans, too.
Tensor Torch::all_true(const Tensor& flags) {
  Tensor answer = value(1, Dtype::u8, "all");
  const ReduceScratch scratch = sum_over_all(flags.elements, device_);  // of numbers of 4 bytes
  const Tensor partials = temporary(scratch.partials.n / 4, Dtype::u8, "partial results");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return computed("aten::all", {reads(flags)}, std::move(answer));
}

Tensor Torch::add_in_place(Tensor a, const Tensor& b) {
  heap_.run("aten::add_", {reads(b), changes(a)});
  std::vector<Edge> both{edge_to(a), edge_to(b)};
  return record(std::move(a), std::move(both), {}, [](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{g, g};
  });
}

Tensor Torch::add_scalar_in_place(Tensor x) {
  heap_.run("aten::add_", {changes(x)});
  Edge edge = edge_to(x);
  return record(std::move(x), {std::move(edge)}, {},
                [](Tensor& g, const std::vector<Tensor>&) { return std::vector<Tensor>{g}; });
}

Tensor Torch::count_true(const Tensor& flags) {
  Tensor count = value(1, Dtype::i64, "sum of flags");
  const Tensor wide = temporary(flags.elements, Dtype::i64, "flags as numbers");
  const ReduceScratch scratch = sum_over_all(flags.elements, device_);  // of numbers of half the size
  const Tensor partials = temporary(2 * scratch.partials.n, Dtype::u8, "partial sums");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return computed("aten::sum", {reads(flags), writes(wide)}, std::move(count));
}

}  // namespace vramfit::eager
