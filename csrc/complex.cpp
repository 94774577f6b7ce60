// lampwork::as_real and lampwork::as_complex: a tensor of the other kind over the same memory.
//
// Unlike view_as_real and view_as_complex they make no view: a result that leaves a program has no base.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace lampwork {

namespace {

at::Tensor over(const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides);
  impl->set_storage_offset(offset);
  return at::Tensor(std::move(impl));
}

// Of shape (*S, 2): real and imaginary parts.
at::Tensor as_real(const at::Tensor& given) {
  TORCH_CHECK(given.is_complex(), "as_real of a tensor that is not complex");
  const at::Tensor z = given.resolve_conj();
  std::vector<int64_t> sizes = z.sizes().vec(), strides = z.strides().vec();
  for (int64_t& stride : strides) stride *= 2;
  sizes.push_back(2);
  strides.push_back(1);
  return over(z, c10::toRealValueType(z.scalar_type()), sizes, strides, z.storage_offset() * 2);
}

// Of a tensor of shape (*S, 2) whose pairs lie side by side.
at::Tensor as_complex(const at::Tensor& real) {
  bool pairs = real.dim() > 0 && real.size(-1) == 2 && real.stride(-1) == 1 && real.storage_offset() % 2 == 0;
  for (int64_t dim = 0; dim + 1 < real.dim(); ++dim) pairs &= real.stride(dim) % 2 == 0;
  TORCH_CHECK(pairs, "as_complex of a tensor that is not pairs side by side");
  std::vector<int64_t> sizes = real.sizes().vec(), strides = real.strides().vec();
  sizes.pop_back();
  strides.pop_back();
  for (int64_t& stride : strides) stride /= 2;
  return over(real, c10::toComplexType(real.scalar_type()), sizes, strides, real.storage_offset() / 2);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("as_real(Tensor z) -> Tensor", TORCH_FN(as_real));
  m.def("as_complex(Tensor real) -> Tensor", TORCH_FN(as_complex));
}

}  // namespace lampwork
