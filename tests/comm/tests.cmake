hyscale_test(test_comm_layout SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_context_layout.cpp ${CMAKE_CURRENT_LIST_DIR}/test_groups.cpp
  DEPENDS hyscale_comm)

# hyscale_mpi_test(NAME PROGRAM RANKS...): the same program under several world sizes; a rank's failure is its exit code.
function(hyscale_mpi_test name)
  foreach(ranks ${ARGN})
    add_test(NAME ${name}_np${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -np ${ranks} $<TARGET_FILE:${name}>
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}_np${ranks} PROPERTIES TIMEOUT 120 PROCESSORS 2
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_btl_vader_single_copy_mechanism=none;OMP_NUM_THREADS=1")
  endforeach()
endfunction()

foreach(check communicator_check ring_check)
  add_executable(${check} ${CMAKE_CURRENT_LIST_DIR}/${check}.cpp)
  target_link_libraries(${check} PRIVATE hyscale_comm)
  hyscale_mpi_test(${check} 1 2 4)
endforeach()
