#include "executor/place/own_address.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "executor/place/rank_place.h"

namespace vramfit {

TEST_CASE("the route to this machine begins at the address that is asked for") {
  CHECK(source_address("127.0.0.1") == "127.0.0.1");
  CHECK(resolves_to_loopback("127.0.1.1"));
  CHECK_FALSE(resolves_to_loopback("192.0.2.77"));
}

TEST_CASE("a name without address is a fault that names it, and is not loopback") {
  CHECK_THROWS_WITH_AS(source_address("host.invalid"), doctest::Contains("MASTER_ADDR host.invalid: "), FaultError);
  CHECK_FALSE(resolves_to_loopback("host.invalid"));
}

TEST_CASE("addresses that stay on the machine are told from names that only look like them") {
  for (const char* address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) CHECK(is_loopback(address));
  for (const char* address : {"127.example.com", "10.0.0.1", "localhost.example.com", "fe80::1", ""}) {
    CHECK_FALSE(is_loopback(address));
  }
}

TEST_CASE("an interface that is not there is refused by the variable's name") {
  CHECK(interfaces_named("GLOO_SOCKET_IFNAME", "lo") == std::vector<std::string>{"lo"});
  CHECK(interfaces_named("GLOO_SOCKET_IFNAME", "lo,lo").size() == 2);
  for (const char* list : {"nowhere0", "lo,", "lo,x\ny", "an-interface-name-too-long"}) {
    CHECK_THROWS_WITH_AS(interfaces_named("GLOO_SOCKET_IFNAME", list), doctest::Contains("GLOO_SOCKET_IFNAME="),
                         InputError);
  }
}

}  // namespace vramfit
