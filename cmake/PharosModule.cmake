# pharos_module(NAME [TORCH] [DEPENDS module…] [LIBRARIES target…])
# One module of the house: all *.cc of the current folder become the static library pharos_NAME, all *_test.cc one test
# program NAME_test whose suites ctest lists one by one (label "unit"), each on one thread: ctest runs several at once, and
# OpenMP threads that wait for each other on busy cores are slow beyond measure. A suite and not a case is a process, since loading
# libtorch takes longer than most cases. TORCH adds libtorch and the shared precompiled header.
# Files named *_fuzz.cc belong to tests/fuzz and are left out.
function(pharos_module name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz|main)\\.cc$")
  list(TRANSFORM ARG_DEPENDS PREPEND pharos_)
  if(name STREQUAL lens AND NOT PHAROS_LENS)
    set(tests "")  # they test what is not there; tests/lens_off_test.cc does the rest
  endif()

  if(NOT sources)
    message(STATUS "module ${name} has no source")
    return()
  endif()
  add_library(pharos_${name} STATIC ${sources})
  target_include_directories(pharos_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(pharos_${name} PUBLIC ${ARG_DEPENDS} ${ARG_LIBRARIES})
  set(targets pharos_${name})
  if(tests AND NOT PHAROS_FUZZ)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE pharos_${name} GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE PHAROS_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    target_compile_options(${name}_test PRIVATE -O1)  # tests are compiled more often than they run
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake CONTENT
      "set(module ${name})\nset(program \"$<TARGET_FILE:${name}_test>\")\ninclude(\"${PROJECT_SOURCE_DIR}/cmake/ListSuites.cmake\")\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
    list(APPEND targets ${name}_test)
  endif()
  if(ARG_TORCH)
    foreach(target ${targets})
      target_link_libraries(${target} PUBLIC ${TORCH_LIBRARIES})
      target_precompile_headers(${target} REUSE_FROM torch_pch)
    endforeach()
  endif()
endfunction()
