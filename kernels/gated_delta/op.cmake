hyscale_op(gated_delta SOURCES gated_delta.cpp gated_delta_ref.cpp delta_states.cpp delta_gates.cpp DEPENDS OpenBLAS::OpenBLAS)
