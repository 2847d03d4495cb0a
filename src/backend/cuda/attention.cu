// Rotary embedding, the KV cache and softmax attention.
#include "backend/cuda/cuda.h"
#include "base/check.h"

namespace tandem::cuda {

size_t CudaBackend::kv_page_bytes(const AttentionShape& shape) const {
  return size_t(2) * kPageTokens * size_t(shape.kv_dim()) * sizeof(uint16_t);
}

void CudaBackend::do_rope_angles(const Step&, View, float, MutView) { TD_CHECK(false, "not written"); }
void CudaBackend::do_attention_prep(const Step&, const AttentionPrep&) { TD_CHECK(false, "not written"); }
void CudaBackend::do_attention(const Step&, const Attention&) { TD_CHECK(false, "not written"); }
void CudaBackend::do_move_kv(const SeqStep&, const AttentionShape&, const KvLayer&,
                             std::span<const uint8_t>) {
  TD_CHECK(false, "not written");
}

}  // namespace tandem::cuda
