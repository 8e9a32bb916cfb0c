hyscale_test(test_comm_layout SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_context_layout.cpp ${CMAKE_CURRENT_LIST_DIR}/test_groups.cpp
  DEPENDS hyscale_comm)

# The same program under several world sizes; a rank's failure is the program's exit code.
add_executable(communicator_check ${CMAKE_CURRENT_LIST_DIR}/communicator_check.cpp)
target_link_libraries(communicator_check PRIVATE hyscale_comm)
foreach(ranks 1 2 4)
  add_test(NAME communicator_mpi_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -np ${ranks} $<TARGET_FILE:communicator_check>)
  set_tests_properties(communicator_mpi_${ranks} PROPERTIES TIMEOUT 120
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_btl_vader_single_copy_mechanism=none")
endforeach()
