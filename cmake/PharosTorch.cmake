# pharos_find_torch(): sets TORCH_LIBRARIES, TORCH_CUDA_LIBRARIES and Torch_DIR.
# The package file of a CUDA build of libtorch stops where there is no CUDA toolkit (nvcc), although such a build runs on
# any CPU. Then its CPU libraries are taken directly: pip serves the CUDA build by default, and a laptop has no toolkit.
function(pharos_torch_cpu_libraries prefix)
  foreach(name c10 torch_cpu)
    add_library(pharos_${name} SHARED IMPORTED GLOBAL)
    set_target_properties(pharos_${name} PROPERTIES IMPORTED_LOCATION ${prefix}/lib/lib${name}.so)
    target_include_directories(pharos_${name} SYSTEM INTERFACE ${prefix}/include ${prefix}/include/torch/csrc/api/include)
  endforeach()
  # What torch_cpu was built with; c10d's headers read these.
  target_compile_definitions(pharos_torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  target_link_libraries(pharos_torch_cpu INTERFACE pharos_c10)
endfunction()

# at::parallel_for is a plain loop in code that is not compiled for OpenMP. The runtime is the one that libtorch brings, if it
# brings one: two of them would keep twice as many threads as there are cores.
function(pharos_torch_openmp folder)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  add_library(pharos_openmp INTERFACE)
  target_compile_options(pharos_openmp INTERFACE ${OpenMP_CXX_FLAGS})
  file(GLOB runtimes ${folder}/libgomp*.so* ${folder}/libiomp5.so)
  if(runtimes AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(GET runtimes 0 runtime)
    target_link_libraries(pharos_openmp INTERFACE ${runtime})
  else()
    target_link_libraries(pharos_openmp INTERFACE OpenMP::OpenMP_CXX)
  endif()
endfunction()

# Sets PHAROS_TORCH_LIBRARY_FOLDER as well: where the libtorch lies that the installed program must find again.
macro(pharos_find_torch)
  find_file(PHAROS_TORCH_CONFIG TorchConfig.cmake HINTS ${Torch_DIR} ENV Torch_DIR ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
            PATH_SUFFIXES Torch share/cmake/Torch lib/cmake/Torch)
  get_filename_component(pharos_torch_prefix "${PHAROS_TORCH_CONFIG}/../../../.." ABSOLUTE)
  unset(PHAROS_TORCH_CONFIG CACHE)
  find_program(PHAROS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH ENV CUDACXX /usr/local/cuda PATH_SUFFIXES bin)
  if(EXISTS ${pharos_torch_prefix}/lib/libtorch_cuda.so AND NOT PHAROS_NVCC AND NOT PHAROS_REQUIRE_CUDA)
    message(STATUS "libtorch in ${pharos_torch_prefix} is built for CUDA, but there is no CUDA toolkit: building for the CPU")
    pharos_torch_cpu_libraries(${pharos_torch_prefix})
    set(TORCH_LIBRARIES pharos_torch_cpu)
    set(Torch_DIR ${pharos_torch_prefix}/share/cmake/Torch CACHE PATH "The folder with TorchConfig.cmake")
  else()
    find_package(Torch REQUIRED)
  endif()
  set(PHAROS_TORCH_LIBRARY_FOLDER ${pharos_torch_prefix}/lib)
  pharos_torch_openmp(${pharos_torch_prefix}/lib)
  list(APPEND TORCH_LIBRARIES pharos_openmp)
endmacro()
