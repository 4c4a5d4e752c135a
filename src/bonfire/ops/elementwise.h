#pragma once
// Elementwise ops with NumPy broadcasting and PyTorch's type rules. Plain numbers beside a tensor never widen it, and
// may vary from step to step without a new plan; so may a Scalar.

#include <concepts>
#include <optional>

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

// Either side of a binary op.
class Operand {
 public:
  Operand(const Tensor& tensor) : tensor_(tensor) {}
  Operand(const Variable& variable) : tensor_(variable.value()) {}
  Operand(const Scalar& scalar) : scalar_(scalar), kind_(Kind::floating) {}
  template <std::floating_point T>
  Operand(T number) : scalar_(Scalar(static_cast<double>(number))), kind_(Kind::floating) {}
  template <std::integral T>
  Operand(T number) : scalar_(Scalar(static_cast<double>(number))), kind_(Kind::integral) {}

  bool is_number() const { return kind_ != Kind::tensor; }
  Tensor beside(const Operand& other) const;  // as a tensor fit to stand beside `other`

 private:
  enum class Kind : uint8_t { tensor, floating, integral };
  Tensor tensor_;
  std::optional<Scalar> scalar_;  // of a number
  Kind kind_ = Kind::tensor;
};

Tensor add(const Operand& a, const Operand& b);
Tensor sub(const Operand& a, const Operand& b);
Tensor mul(const Operand& a, const Operand& b);
Tensor div(const Operand& a, const Operand& b);  // true division: integers give f32
Tensor pow(const Operand& a, const Operand& b);
Tensor maximum(const Operand& a, const Operand& b);
Tensor minimum(const Operand& a, const Operand& b);

// Comparisons give bool.
Tensor equal(const Operand& a, const Operand& b);
Tensor not_equal(const Operand& a, const Operand& b);
Tensor less(const Operand& a, const Operand& b);
Tensor less_equal(const Operand& a, const Operand& b);
Tensor greater(const Operand& a, const Operand& b);
Tensor greater_equal(const Operand& a, const Operand& b);

inline Tensor operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Tensor operator-(const Operand& a, const Operand& b) { return sub(a, b); }
inline Tensor operator*(const Operand& a, const Operand& b) { return mul(a, b); }
inline Tensor operator/(const Operand& a, const Operand& b) { return div(a, b); }
Tensor operator-(const Tensor& x);

Tensor negative(const Tensor& x);
Tensor absolute(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);       // exact: x Φ(x)
Tensor gelu_tanh(const Tensor& x);  // the tanh approximation
Tensor silu(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor logical_not(const Tensor& x);  // bool

Tensor where(const Tensor& condition, const Operand& a, const Operand& b);
Tensor clamp(const Tensor& x, const Operand& low, const Operand& high);
Tensor cast(const Tensor& x, DType dtype);

}  // namespace bonfire
