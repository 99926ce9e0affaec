"""The files in ``hw_counters/`` that count failed operations, those that wrap, and those that are not exported."""

from __future__ import annotations

from .rdma_row import Family, errors

ERRORS: tuple[Family, ...] = (
    errors(
        "requester_errors",
        "Operations of this port that failed, by kind. Flushed completions follow from any other error.",
        {
            "req_cqe_error": "completion",  # mlx5, and bnxt_re since 6.17
            "req_cqe_flush_error": "completion_flushed",
            "req_remote_access_errors": "remote_access",
            "req_remote_invalid_request": "remote_invalid_request",
            "remote_access_err": "remote_access",  # bnxt_re
            "remote_invalid_req_err": "remote_invalid_request",
            "remote_op_err": "remote_operation",
            "bad_resp_err": "bad_response",
            "local_qp_op_err": "local_operation",
            "local_protection_err": "local_protection",
            "mem_mgmt_op_err": "memory_management",
            "req_rx_cqe_err": "completion",  # ionic
            "req_rx_cqe_flush": "completion_flushed",
            "req_rx_rmt_acc_err": "remote_access",
            "req_rx_rmt_req_err": "remote_invalid_request",
            "req_rx_oper_err": "remote_operation",
            "req_rx_dup_response": "duplicate_response",
            "req_rx_inval_pkts": "invalid_packet",
            "req_tx_loc_acc_err": "local_access",
            "req_tx_loc_oper_err": "local_operation",
            "req_tx_loc_sgl_inv_err": "local_scatter_list",
            "req_tx_mem_mgmt_err": "memory_management",
            "nak_access_error": "remote_access",  # mana
            "nak_inv_req": "remote_invalid_request",
            "nak_opp_error": "remote_operation",
            "nak_inv_read": "remote_invalid_read",
            "requester_readresp_psn_mismatch": "bad_response",
            "requestor_local_prot_error": "local_protection",
            "rdma_read_wr_err": "read",  # efa
            "rdma_write_wr_err": "write",
            "completer_retry_err": "completer_retry",  # rxe
            "OtherNak": "other_nak",  # hfi1
            "sq_num_lle": "local_length",  # mlx4
            "sq_num_lqpoe": "local_operation",
            "sq_num_lpe": "local_protection",
            "sq_num_mwbe": "memory_window_bind",
            "sq_num_bre": "bad_response",
            "sq_num_rae": "remote_access",
            "sq_num_rire": "remote_invalid_request",
            "sq_num_roe": "remote_operation",
            "sq_num_wrfe": "completion_flushed",
        },
    ),
    errors(
        "responder_errors",
        "Operations that peers requested from this port and that failed, by kind.",
        {
            "resp_cqe_error": "completion",  # mlx5, and bnxt_re since 6.17
            "resp_cqe_flush_error": "completion_flushed",
            "resp_local_length_error": "local_length",
            "resp_remote_access_errors": "remote_access",
            "res_cmp_err": "completion",  # bnxt_re
            "res_length_mismatch": "local_length",
            "res_exceed_max": "exceeds_maximum",
            "res_exceeds_wqe": "exceeds_request",
            "res_opcode_err": "opcode",
            "res_unsup_opcode": "unsupported_opcode",
            "res_rx_invalid_rkey": "receive_invalid_key",
            "res_rx_domain_err": "receive_domain",
            "res_rx_no_perm": "receive_permission",
            "res_rx_range_err": "receive_range",
            "res_tx_invalid_rkey": "transmit_invalid_key",
            "res_tx_domain_err": "transmit_domain",
            "res_tx_no_perm": "transmit_permission",
            "res_tx_range_err": "transmit_range",
            "res_invalid_dup_rkey": "duplicate_invalid_key",
            "res_irrq_oflow": "read_queue_overflow",
            "res_unaligned_atomic": "unaligned_atomic",
            "res_rem_inv_err": "remote_invalidate",
            "res_wqe_format_err": "request_format",
            "res_mem_err": "memory",
            "res_srq_err": "shared_receive_queue",
            "res_srq_load_err": "shared_receive_queue_load",
            "res_cq_load_err": "completion_queue_load",
            "res_tx_pci_err": "transmit_pcie",
            "res_rx_pci_err": "receive_pcie",
            "resp_rx_cqe_err": "completion",  # ionic
            "resp_rx_cqe_flush": "completion_flushed",
            "resp_rx_loc_len_err": "local_length",
            "resp_rx_loc_oper_err": "local_operation",
            "resp_rx_inval_request": "invalid_request",
            "resp_rx_outof_atomic": "out_of_atomic_resource",
            "resp_rx_s0_table_err": "table",
            "resp_tx_loc_sgl_inv_err": "local_scatter_list",
            "resp_tx_pkt_seq_err": "sequence_nak_sent",
            "resp_tx_rmt_acc_err": "remote_access",
            "resp_tx_rmt_inval_req_err": "remote_invalid_request",
            "resp_tx_rmt_oper_err": "remote_operation",
            "responder_local_len_error": "local_length",  # mana
            "responder_rem_access_error": "remote_access",
            "responder_local_qp_error": "local_operation",
            "responder_malformed_wqe": "request_format",
            "rq_num_lle": "local_length",  # mlx4
            "rq_num_lqpoe": "local_operation",
            "rq_num_lpe": "local_protection",
            "rq_num_rae": "remote_access",
            "rq_num_rire": "remote_invalid_request",
            "rq_num_wrfe": "completion_flushed",
            "rq_num_udsdprd": "datagram_dropped",
        },
    ),
    errors(
        "device_errors",
        "Errors of the device or its driver, by kind: commands that failed, or resources that were not available.",
        {
            "unrecoverable_err": "unrecoverable",  # bnxt_re
            "general_hw_error": "hardware",  # mana
            "total_fatal_error": "fatal",
            "num_cqovf": "completion_queue_overflow",  # mlx4
            "cmds_err": "command",  # efa
            "no_completion_cmds": "command_without_completion",
            "alloc_pd_err": "protection_domain",
            "alloc_ucontext_err": "user_context",
            "create_qp_err": "queue_pair",
            "create_cq_err": "completion_queue",
            "create_ah_err": "address_handle",
            "reg_mr_err": "memory_region",
            "mmap_err": "mmap",
            "DRIVER_HW_Errs": "hardware",  # hfi1
            "DRIVER_Tx_Errs": "transmit",
            "DRIVER_Rcv_Errs": "receive",
            "DRIVER_NoPIOBufs": "no_send_buffer",
            "DRIVER_EgrBufFull": "eager_buffer_full",
            "DRIVER_EgrHdrFull": "eager_header_full",
            "DcUnctblErr": "uncorrectable",
        },
    ),
)

WRAPPING: dict[str, tuple[str, ...]] = {
    # 32 bits each: mlx5_ib_query_q_counters() and mlx4_ib's diagnostic counters. It is not documented whether they wrap
    # or stop at the maximum. Treating a counter that stops as one that wraps does no harm.
    "mlx5_core": (
        *("rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer"),
        *("out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err"),
        *("local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error", "req_cqe_error"),
        *("req_remote_invalid_request", "req_remote_access_errors", "resp_remote_access_errors"),
        *("resp_cqe_flush_error", "req_cqe_flush_error", "req_transport_retries_exceeded", "req_rnr_retries_exceeded"),
        *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps"),
        "roce_slow_restart_trans",
    ),
    "mlx4_core": (
        *("rq_num_lle", "sq_num_lle", "rq_num_lqpoe", "sq_num_lqpoe", "rq_num_lpe", "sq_num_lpe", "rq_num_wrfe"),
        *("sq_num_wrfe", "sq_num_mwbe", "sq_num_bre", "sq_num_rire", "rq_num_rire", "sq_num_rae", "rq_num_rae"),
        *("sq_num_roe", "sq_num_tree", "sq_num_rree", "rq_num_rnr", "sq_num_rnr", "rq_num_oos", "sq_num_oos"),
        *("rq_num_dup", "sq_num_to", "num_cqovf", "rq_num_udsdprd"),
    ),
}
"""Driver of the PCI function -> files with 32-bit counters that wrap to 0."""

NOT_EXPORTED: frozenset[str] = frozenset(
    (
        "lifespan",  # a setting: how many ms the driver caches the other counters
        # bnxt_re: numbers of objects and their maxima; tx_bcast_pkts under a wrong name; parts of other counters
        *("active_pds", "active_ahs", "active_qps", "active_rc_qps", "active_ud_qps", "active_srqs", "active_cqs"),
        *("active_mrs", "active_mws", "watermark_pds", "watermark_ahs", "watermark_qps", "watermark_rc_qps"),
        *("watermark_ud_qps", "watermark_srqs", "watermark_cqs", "watermark_mrs", "watermark_mws", "resize_cq_cnt"),
        *("recoverable_errors", "tx_roce_only_pkts", "tx_roce_only_bytes", "rx_roce_only_pkts", "rx_roce_only_bytes"),
        *("rx_roce_good_pkts", "rx_roce_good_bytes", "rx_good_pkts", "rx_good_bytes", "tx_read_resp", "rx_read_resp"),
        *("pacing_reschedule", "pacing_complete", "pacing_alerts", "db_fifo_register"),
        *("submitted_cmds", "completed_cmds", "keep_alive_rcvd"),  # efa: the driver's own commands
        # irdma: parts of ip4*, ip6* and iw*, or not useful here
        *(
            "ip4InReasmRqd",
            "ip4OutSegRqd",
            "ip4InMcastPkts",
            "ip4OutMcastPkts",
            "ip4InMcastOctets",
            "ip4OutMcastOctets",
        ),
        *(
            "ip6InReasmRqd",
            "ip6OutSegRqd",
            "ip6InMcastPkts",
            "ip6OutMcastPkts",
            "ip6InMcastOctets",
            "ip6OutMcastOctets",
        ),
        *("RxUDP", "TxUDP", "tcpInSegs", "tcpOutSegs", "InSegs", "OutSegs", "iwRdmaBnd", "iwRdmaInv"),
        *("tcpInOptErrors", "tcpInProtoErrors", "InOptErrors", "InProtoErrors", "ord limit count", "ird limit count"),
        # mana: counters of the function and of the adapter, or levels
        *("received_cnp_count", "num_qps_congested", "num_qps_recovered", "current_rate", "rate_inc_events"),
        *("qp_congested_events", "qp_recovered_events", "dup_rx_requests"),
        # ionic: parts of other counters, for AMD's own collectives
        *("tx_rdma_ccl_cts_bytes", "tx_rdma_ccl_cts_pkts", "rx_rdma_ccl_cts_bytes", "rx_rdma_ccl_cts_pkts"),
        *("resp_rx_ccl_cts_outouf_seq", "tx_rdma_ccl_cts_ack_timeout", "tx_rdma_ccl_cts_retx_bytes"),
        "tx_rdma_ccl_cts_retx_pkts",
        # hns: parts of rx_pkt and tx_pkt, and internals of the device
        *("rx_rc_pkt", "rx_uc_pkt", "rx_ud_pkt", "rx_xrc_pkt", "tx_rc_pkt", "tx_uc_pkt", "tx_ud_pkt", "tx_xrc_pkt"),
        *("trp_get_mpt_err_pkt", "trp_get_irrl_err_pkt", "ecn_doorbell", "rx_buffer", "trp_rx_sof"),
        *("cq_cqe", "cq_poe", "cq_notify"),
        *("tx_reqs_cnt", "ack_deferred"),  # erdma, rxe
    )
)
"""Known files that are not exported: they do not help to explain idle devices, or repeat other counters."""

INNER_LIFE: dict[str, tuple[str, ...]] = {
    # chip.c has about 400 counters: per lane, per engine, per CPU, and one for every parity bit.
    "hfi1": (
        *("Cce", "DRIVER_", "Dc", "Egress", "Intr", "Kmem", "Launch", "Loop", "MISC_", "Pcic", "Pio", "PbcExt"),
        *(
            "RC",
            "Rc",
            "Rcv",
            "Rdma",
            "Rx",
            "SDE",
            "SDMA",
            "SDma",
            "Send",
            "Sw",
            "Tid",
            "Tx",
            "Unaligned",
            "Xmit",
            "vTx",
        ),
    )
}
"""Driver of the PCI function -> prefixes of files that are ignored instead of being reported as unknown."""
