#include "executor/place/node_list.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "base/error.h"
#include "tests/support/mutate.h"

namespace vramfit {

namespace {

using Hosts = std::vector<std::string>;

/// A list as a person may think of it: elements of a name and its bracketed ranges, one text a number.
struct Range {
  int first = 0, last = 0, width = 1;
};
struct Element {
  std::string name;
  std::vector<std::vector<Range>> brackets;
  std::string end;
};
using List = std::vector<Element>;

std::string text_of(const List& list) {
  std::string text;
  for (const Element& element : list) {
    text += (text.empty() ? "" : ",") + element.name;
    for (const auto& ranges : element.brackets) {
      std::string inside;
      for (const Range& r : ranges) {
        inside += fmt::format("{}{:0{}}", inside.empty() ? "" : ",", r.first, r.width);
        if (r.last != r.first) inside += fmt::format("-{:0{}}", r.last, r.width);
      }
      text += "[" + inside + "]";
    }
    text += element.end;
  }
  return text;
}

/// Written apart from the parser: one host after the other, the last bracket fastest.
Hosts hosts_of(const List& list) {
  Hosts hosts;
  for (const Element& element : list) {
    const std::function<void(std::size_t, std::string)> extend = [&](std::size_t bracket, const std::string& name) {
      if (bracket == element.brackets.size()) {
        hosts.push_back(name + element.end);
        return;
      }
      for (const Range& r : element.brackets[bracket]) {
        for (int n = r.first; n <= r.last; ++n) extend(bracket + 1, name + fmt::format("{:0{}}", n, r.width));
      }
    };
    extend(0, element.name);
  }
  return hosts;
}

List random_list(std::mt19937_64& random) {
  const auto upto = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  List list(static_cast<std::size_t>(1 + upto(3)));
  for (Element& element : list) {
    element.name = std::string(1, static_cast<char>('a' + upto(25))) + (upto(1) == 0 ? "-x7" : "");
    element.brackets.resize(static_cast<std::size_t>(upto(2)));
    for (auto& ranges : element.brackets) {
      ranges.resize(static_cast<std::size_t>(1 + upto(2)));
      for (Range& r : ranges) {
        r.first = upto(120);
        r.last = r.first + upto(1) * upto(12);
        r.width = std::max(static_cast<int>(std::to_string(r.first).size()), 1 + upto(4));
      }
    }
    element.end = upto(2) == 0 ? ".net" : "";
  }
  return list;
}

bool agrees(const List& list) {
  try {
    return expand_node_list(text_of(list)) == hosts_of(list);
  } catch (const InputError&) {
    return false;
  }
}

/// Takes away what can go while the parser still disagrees.
List shrink(List list) {
  const auto try_to = [&](const std::function<bool(List&)>& change) {
    List smaller = list;
    if (!change(smaller) || smaller.empty() || agrees(smaller)) return false;
    list = std::move(smaller);
    return true;
  };
  bool changed = true;
  while (changed) {
    changed = false;
    for (std::size_t e = 0; e < list.size(); ++e) {
      changed |=
          try_to([&](List& l) { return l.size() > 1 && (l.erase(l.begin() + static_cast<std::ptrdiff_t>(e)), true); });
      if (e >= list.size()) break;
      changed |= try_to([&](List& l) { return !std::exchange(l[e].end, "").empty(); });
      changed |= try_to([&](List& l) { return !l[e].brackets.empty() && (l[e].brackets.pop_back(), true); });
      for (std::size_t b = 0; b < list[e].brackets.size(); ++b) {
        changed |= try_to([&](List& l) { return l[e].brackets[b].size() > 1 && (l[e].brackets[b].pop_back(), true); });
        changed |= try_to([&](List& l) {
          Range& r = l[e].brackets[b].front();
          return std::exchange(r.last, r.first) != r.first;
        });
      }
    }
  }
  return list;
}

std::string refusal(const std::string& text) {
  try {
    expand_node_list(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("names, ranges, single numbers and several brackets become hosts in the list's order") {
  CHECK(expand_node_list("login") == Hosts{"login"});
  CHECK(expand_node_list("node[01-03,07]") == Hosts{"node01", "node02", "node03", "node07"});
  CHECK(expand_node_list("b,a[9-11].x") == Hosts{"b", "a9.x", "a10.x", "a11.x"});
  CHECK(expand_node_list("r[0-1]n[1-2]") == Hosts{"r0n1", "r0n2", "r1n1", "r1n2"});
  CHECK(expand_node_list("10.0.0.7") == Hosts{"10.0.0.7"});
}

TEST_CASE("what is not a list of hosts is refused with the reason") {
  CHECK(refusal("").find("can't be a host's name") != std::string::npos);
  CHECK(refusal("node[1-2").find("not closed") != std::string::npos);
  CHECK(refusal("node[3-1]").find("backwards") != std::string::npos);
  CHECK(refusal("node[1-x]").find("\"x\" is not a number") != std::string::npos);
  CHECK(refusal("node[]").find("is not a number") != std::string::npos);
  CHECK(refusal("node[-1]").find("is not a number") != std::string::npos);
  CHECK(refusal("node[1-9999999999]").find("at most 9 digits") != std::string::npos);
  CHECK(refusal("node[0-999999999]").find("more than 65536") != std::string::npos);
  CHECK(refusal("n[0-999][0-999]").find("more than 65536") != std::string::npos);
  CHECK(refusal("a,,b").find("can't be a host's name") != std::string::npos);
  CHECK(refusal("$(reboot)").find("can't be a host's name") != std::string::npos);
  CHECK(refusal("-oProxyCommand=x").find("can't be a host's name") != std::string::npos);
  CHECK(refusal("a\nb").find('\n') == std::string::npos);
  CHECK(refusal("a]").find("can't be a host's name") != std::string::npos);
  CHECK(refusal(std::string(300, 'a')).find("can't be a host's name") != std::string::npos);
}

TEST_CASE("two thousand lists made from their hosts are taken apart into the same hosts") {
  std::mt19937_64 random(8);
  for (int i = 0; i < 2000; ++i) {
    const List list = random_list(random);
    if (agrees(list)) continue;
    const List smallest = shrink(list);
    FAIL("list ", i, ", after shrinking: ", text_of(smallest));
  }
}

TEST_CASE("a damaged list gives hosts with harmless names or one line of refusal") {
  std::mt19937_64 random(9);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = testing::mutate(text_of(random_list(random)), random);
    CAPTURE(i);
    Hosts hosts;
    try {
      hosts = expand_node_list(text);
      CHECK(!hosts.empty());
      CHECK(std::ranges::all_of(hosts, [](const std::string& host) { return is_host_name(host); }));
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      CHECK(std::string(error.what()).size() < 400);
    }
  }
}

}  // namespace vramfit
