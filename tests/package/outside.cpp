// A user's program: it knows only the installed package.
#include <bonfire/base/error.h>
#include <bonfire/tensor/shape.h>

#include <cstdio>

int main() {
  try {
    bonfire::broadcast_shapes("add", {2, 3}, {4});
  } catch (const bonfire::ShapeError& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}
