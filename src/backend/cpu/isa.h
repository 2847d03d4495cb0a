// Which instruction set the kernels use. Chosen once, at run time, by what the CPU reports.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace tandem::cpu {

//   portable  plain C++
//   avx2      AVX2, FMA, F16C
//   avx512    AVX-512 F, BW, VL, DQ and VNNI
enum class Isa { portable, avx2, avx512 };

std::string_view isa_name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);
bool isa_supported(Isa isa);
// What this machine can run, the best one last.
std::vector<Isa> supported_isas();
Isa best_isa();
// AVX512_BF16, which avx512 uses where it is there: faster, the same bits.
bool has_bf16_dot();

}  // namespace tandem::cpu
