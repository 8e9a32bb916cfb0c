add_executable(golden-check ${CMAKE_CURRENT_LIST_DIR}/golden_check.cpp)
target_link_libraries(golden-check PRIVATE hyscale_train CLI11::CLI11)
foreach(recompute none layer)
  add_test(NAME golden.recompute_${recompute}
    COMMAND golden-check --recompute ${recompute} tests/goldens/glm51 tests/goldens/glm51_odd_length tests/goldens/glm52_shared WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(golden.recompute_${recompute} PROPERTIES TIMEOUT 60)
endforeach()
hyscale_test(test_glm_model SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_glm_model.cpp DEPENDS hyscale_train)
hyscale_test(test_glm_config SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_glm_config.cpp DEPENDS hyscale_train)
