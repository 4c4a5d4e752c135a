# Kernels for one instruction set are files of backend/cpu named by it: gemm_avx2.cpp, gemm_avx512.cpp, gemm_neon.cpp.
# They are compiled with its flags, only for processors that can have it, and called only after asking the processor.
#
# Inline functions and templates that such a file shares with ordinary files are compiled in both; the linker keeps the
# first it meets. So ordinary files are linked first, then these, the plainest first: no ordinary code ends up calling
# an instruction that the processor lacks. For the same reason these files must have no global constructors.
set(bonfire_simd_avx2 -mavx2 -mfma)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # From version 13 on g++ splits some products of a chain of fused ones: slower here, and other bits for other block sizes.
  list(APPEND bonfire_simd_avx2 --param=avoid-fma-max-bits=0)
endif()
set(bonfire_simd_avx512 ${bonfire_simd_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(bonfire_simd_avx512bf16 ${bonfire_simd_avx512} -mavx512bf16)
set(bonfire_simd_amx ${bonfire_simd_avx512bf16} -mamx-tile -mamx-bf16)
set(bonfire_simd_neon "")
set(bonfire_simd_neonbf16 -march=armv8.2-a+bf16)

if(BONFIRE_SANITIZE STREQUAL "thread") # which looks at threads: they are the same for every set
  set(bonfire_simd_here "")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(bonfire_simd_here avx2 avx512 avx512bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(bonfire_simd_here neon neonbf16)
else()
  set(bonfire_simd_here "")
endif()

# Files of backend/cpu that are plain loops, which say so by BONFIRE_CPU_KERNELS: each is compiled for the baseline and
# again for these sets. How they are written is told by backend/cpu/simd/every_instruction_set.h.
set(bonfire_every_set_further avx2 avx512)

# Appends to a list variable a file for each of these and each further set that includes it.
function(bonfire_add_every_set_sources sources_variable)
  # Sanitizers need not see the same loops again.
  if(NOT "avx512" IN_LIST bonfire_simd_here OR BONFIRE_SANITIZE)
    return()
  endif()
  set(further "")
  set(files ${${sources_variable}})
  list(FILTER files INCLUDE REGEX "/src/bonfire/backend/cpu/")
  foreach(source IN LISTS files)
    file(STRINGS ${source} kernels REGEX "^BONFIRE_CPU_KERNELS\\(" LIMIT_COUNT 1)
    if(NOT kernels)
      continue()
    endif()
    string(REGEX REPLACE "^.*/src/bonfire/(.*)\\.cpp$" "\\1" name ${source})
    foreach(set_name IN LISTS bonfire_every_set_further)
      set(file ${PROJECT_BINARY_DIR}/every_set/${name}_${set_name}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "#include \"bonfire/${name}.cpp\"  // NOLINT(bugprone-suspicious-include)\n")
      set_source_files_properties(${file} PROPERTIES COMPILE_DEFINITIONS
                                                     "BONFIRE_COMPILED_SET=${set_name};BONFIRE_COMPILED_FURTHER")
      list(APPEND further ${file})
    endforeach()
  endforeach()
  target_compile_definitions(bonfire_parts INTERFACE BONFIRE_EVERY_SET_X86)
  set(${sources_variable} ${${sources_variable}} ${further} PARENT_SCOPE)
endfunction()

# Moves the instruction-set files of one list variable into another, leaving out those of other processors. For each set
# that has files, the target bonfire_parts gets a definition: BONFIRE_HAVE_AVX512BF16=1.
function(bonfire_split_simd_sources sources_variable simd_variable)
  set(ordinary ${${sources_variable}})
  set(chosen "")
  set(present "")
  foreach(set_name avx2 avx512 avx512bf16 amx neon neonbf16)
    set(files ${ordinary})
    list(FILTER files INCLUDE REGEX "/backend/cpu/.*_${set_name}\\.cpp$")
    list(FILTER ordinary EXCLUDE REGEX "/backend/cpu/.*_${set_name}\\.cpp$")
    if(files AND set_name IN_LIST bonfire_simd_here)
      # Sanitized at -O1 these loops keep their sums in memory, and training takes many times as long.
      set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS ${bonfire_simd_${set_name}} $<$<CONFIG:Sanitize>:-O2>)
      set_property(SOURCE ${files} PROPERTY SKIP_PRECOMPILE_HEADERS ON) # made for the baseline
      if(set_name STREQUAL "neon" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # Loads that g++ moves ahead push sums of Winograd's products out of the registers.
        set(winograd ${files})
        list(FILTER winograd INCLUDE REGEX "/winograd_neon\\.cpp$")
        set_property(SOURCE ${winograd} APPEND PROPERTY COMPILE_OPTIONS -fno-schedule-insns)
      endif()
      string(TOUPPER ${set_name} upper_name)
      target_compile_definitions(bonfire_parts INTERFACE BONFIRE_HAVE_${upper_name}=1)
      list(APPEND chosen ${files})
      list(APPEND present ${set_name})
    endif()
  endforeach()
  list(JOIN present ", " present_text)
  if(NOT present)
    set(present_text "none")
  endif()
  bonfire_summary("CPU instruction sets beyond the baseline" "${present_text}")
  set(${sources_variable} ${ordinary} PARENT_SCOPE)
  set(${simd_variable} ${chosen} PARENT_SCOPE)
endfunction()
