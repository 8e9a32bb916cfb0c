hyscale_op(gated_delta SOURCES gated_delta.cpp gated_delta_ref.cpp delta_states.cpp delta_gates.cpp gated_delta_plain.cu gated_delta_chunks.cu delta_states.cu
  delta_prepare.cu delta_scans.cu delta_outputs.cu delta_gradients.cu delta_gates.cu
  DEPENDS OpenBLAS::OpenBLAS)
