#pragma once
// Attributes: what an op node knows beside its inputs. Integers and lists of integers (strides, axes), element types,
// and numbers that never vary from step to step (epsilon). All of it is part of the plan key.
//
//   Attributes a{{"stride", Shape{2, 2}}, {"groups", 1}};
//   a.ints("stride")[0]

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "bonfire/base/hash.h"
#include "bonfire/base/inline_vector.h"
#include "bonfire/tensor/dtype.h"
#include "bonfire/tensor/shape.h"

namespace bonfire {

class Attributes {
 public:
  enum class Kind : uint8_t { integer, number, list, dtype };

  // One name and its value. The name must be a literal: only its address is kept.
  struct Item {
    template <class T>
    requires std::is_integral_v<T> Item(const char* item_name, T value)
        : name(item_name), kind(Kind::integer), word(static_cast<int64_t>(value)) {}
    Item(const char* item_name, double value)
        : name(item_name), kind(Kind::number), word(std::bit_cast<int64_t>(value)) {}
    Item(const char* item_name, DType value) : name(item_name), kind(Kind::dtype), word(static_cast<int64_t>(value)) {}
    Item(const char* item_name, const Shape& value) : name(item_name), kind(Kind::list), list(value.extents()) {}
    Item(const char* item_name, std::span<const int64_t> value) : name(item_name), kind(Kind::list), list(value) {}

    const char* name;
    Kind kind;
    int64_t word = 0;
    std::span<const int64_t> list;
  };

  Attributes() = default;
  Attributes(std::initializer_list<Item> items) {
    for (const Item& item : items) add(item);
  }

  void set(const Item& item);  // replaces an earlier value of that name

  bool has(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name) const;  // BONFIRE_CHECK fails when the name or kind is another, here and below
  bool flag(std::string_view name) const { return integer(name) != 0; }
  double number(std::string_view name) const;
  DType dtype(std::string_view name) const;
  std::span<const int64_t> list(std::string_view name) const;
  Shape ints(std::string_view name) const { return Shape(list(name)); }

  void mix_into(base::Hash128& hash) const;
  bool empty() const { return entries_.empty(); }
  friend bool operator==(const Attributes& a, const Attributes& b);
  friend std::string to_string(const Attributes& attributes);  // "stride=[2, 2] groups=1"

 private:
  struct Entry {
    const char* name;
    uint32_t begin;  // of words_
    uint32_t count : 24;
    Kind kind : 8;
  };
  static constexpr size_t kMostWords = (1U << 24) - 1;  // of one list
  static_assert(sizeof(Entry) == 16);                   // a node has several

  void add(const Item& item);
  const Entry* find(std::string_view name) const;
  const Entry& require(std::string_view name, Kind kind) const;

  base::InlineVector<Entry, 6> entries_;
  base::InlineVector<int64_t, 10> words_;
};

std::string to_string(const Attributes& attributes);

}  // namespace bonfire
