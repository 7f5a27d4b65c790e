// The update of what lies in host memory. The norm of all gradients is known before the first of them is used: it is
// taken on the card where gradients are there, and else by the CPU.
#include <vector>

#include "program/lowering/host.h"
#include "program/lowering/update.h"

namespace vramfit::program {

Work work_of_squares_on_host(const vramfit::Unit& unit) {
  const Bytes bytes = unit.trainable_elements * dtype_bytes(unit.gradient);
  return {.bytes = static_cast<double>(bytes.n)};
}

void UpdateLowering::clip_on_host() {
  HostSide& host = in_.host;
  host.order(Stream::to_host, Stream::host);
  in_.writer.run({.kernel = Kernel::norm_begin, .stream = Stream::host}, {{&there_.host_norm, How::write}});
  for (std::size_t u = 0; u < in_.units.size(); ++u) {
    const Held gradient = in_.units[u].left_gradient();
    if (!gradient) continue;
    const vramfit::Unit& layout = in_.layout.units[u];
    const int view = in_.views.number(list_view(0, layout.trainable_elements, layout.gradient));
    in_.writer.run({.kernel = Kernel::norm_rest, .unit = static_cast<int>(u), .stream = Stream::host},
                   {Writer::viewed(gradient, How::read, view), {&there_.host_norm, How::add}, {nullptr, How::write}},
                   work_of_squares_on_host(layout));
  }
  const int token = host.to_device(-1, {&there_.host_norm, How::read}, {&there_.norm, How::write}, Bytes{4});
  in_.writer.write(Wait{token, Stream::compute});
}

UpdateLowering::Numbers UpdateLowering::numbers_on_host() const {
  const Numbers on_card = numbers();
  int token = -1;
  const auto bring = [&](const Held& from, const Held& to) {
    if (!from) return Held{};
    token = in_.host.to_host(-1, {&from, How::read}, {&to, How::write}, Bytes{4});
    return to;
  };
  Numbers here{.divisor = bring(on_card.divisor, there_.host_divisor),
               .found_inf = bring(on_card.found_inf, there_.host_found_inf)};
  if (token >= 0) in_.writer.write(Wait{token, Stream::host});
  return here;
}

void UpdateLowering::update_on_host() {
  HostSide& host = in_.host;
  const Numbers numbers = numbers_on_host();
  host.begin_codes();
  if (host.offload().gradients) {
    host.order(Stream::to_host, Stream::host);
    for (UnitLowering& unit : in_.units) {
      if (const Held gradient = unit.left_gradient()) unit.update_on_host(gradient, numbers.divisor, numbers.found_inf);
    }
  } else {
    update_from_card(numbers);
  }
  host.order(Stream::to_device, Stream::compute);
  host.order(Stream::host, Stream::compute);
}

/// While the CPU updates a unit, the gradient of the next one comes, and parameters of the one before go back.
void UpdateLowering::update_from_card(const Numbers& numbers) {
  struct Coming {
    UnitLowering* unit;
    Held staging;
    int token;
  };
  std::vector<Coming> coming;
  const auto use = [&](Coming& first) {
    in_.writer.write(Wait{first.token, Stream::host});
    in_.writer.write(Wait{first.token, Stream::compute});
    first.unit->drop_gradient();
    first.unit->update_on_host(first.staging, numbers.divisor, numbers.found_inf);
  };
  for (UnitLowering& unit : in_.units) {
    if (!unit.gradient_shard()) continue;
    const Held& staging = in_.host.next_staging();
    coming.push_back({&unit, staging, unit.send_gradient(staging)});
    if (coming.size() > 1) use(coming[coming.size() - 2]);
  }
  if (!coming.empty()) use(coming.back());
}

}  // namespace vramfit::program
