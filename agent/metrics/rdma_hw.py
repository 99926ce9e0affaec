"""Maps the files in ``hw_counters/``, the vendors' own counters of an RDMA device or port, to metrics.

Counters with the same meaning have the same metric, whatever name a vendor uses. The names and meanings are those of
the drivers in Linux 6.1 to 6.17 (drivers/infiniband/hw/<driver>). The driver ionic asks its firmware for the names, so
its names are from published uses of it. Counters of bytes are in bytes here; the files in ``counters/`` count in units
of four bytes.
"""

from __future__ import annotations

from . import rdma_port as port
from .rdma_row import Family, kinds, same

COMMON: tuple[Family, ...] = (
    Family(
        port.RECEIVE_BYTES,
        {
            "rx_bytes": ("",),  # efa, bnxt_re, mana
            "rx_bytes_cnt": ("",),  # erdma
            "rx_rdma_ucast_bytes": ("unicast",),  # ionic
            "rx_rdma_mcast_bytes": ("multicast",),
            "ip4InOctets": ("ip4",),  # irdma; includes multicast
            "ip6InOctets": ("ip6",),
        },
    ),
    Family(
        port.TRANSMIT_BYTES,
        {
            "tx_bytes": ("",),
            "tx_bytes_cnt": ("",),
            "tx_rdma_ucast_bytes": ("unicast",),
            "tx_rdma_mcast_bytes": ("multicast",),
            "ip4OutOctets": ("ip4",),
            "ip6OutOctets": ("ip6",),
        },
    ),
    Family(
        port.RECEIVE_PACKETS,
        {
            "rx_pkts": ("",),  # efa, bnxt_re
            "rx_packets": ("",),  # mana
            "rx_packets_cnt": ("",),  # erdma
            "rx_pkt": ("",),  # hns
            "rcvd_pkts": ("",),  # rxe
            "rx_rdma_ucast_pkts": ("unicast",),  # ionic
            "rx_rdma_mcast_pkts": ("multicast",),
            "ip4InPkts": ("ip4",),  # irdma
            "ip6InPkts": ("ip6",),
        },
    ),
    Family(
        port.TRANSMIT_PACKETS,
        {
            "tx_pkts": ("",),
            "tx_packets": ("",),
            "tx_packets_cnt": ("",),
            "tx_pkt": ("",),
            "sent_pkts": ("",),
            "tx_rdma_ucast_pkts": ("unicast",),
            "tx_rdma_mcast_pkts": ("multicast",),
            "ip4OutPkts": ("ip4",),
            "ip6OutPkts": ("ip6",),
        },
    ),
    Family(port.TRANSMIT_DISCARDS, {"tx_roce_discards": ()}),
    Family(port.RECEIVE_ERRORS, {"rx_roce_errors": (), "rx_err_pkt": ()}),  # bnxt_re, hns
    Family(port.LINK_DOWNED, {"link_downed": ()}),  # rxe
    Family(
        port.PORT_ERRORS,
        {
            "rx_icrc_encapsulated": ("icrc",),  # mlx5
            "CRC errors": ("icrc",),  # irdma, third generation
            "RxICrcErr": ("icrc",),  # hfi1
            "DcTotCrc": ("link_crc",),
            "DcTxReplay": ("transmit_replay",),
            "DcRxReplay": ("receive_replay",),
            "rx_rdma_mtu_discard_pkts": ("mtu",),  # ionic
            "tx_roce_errors": ("transmit",),  # bnxt_re
            "tx_err_pkt": ("transmit",),  # hns
            "send_err": ("transmit",),  # rxe
            "rxVlanErrors": ("vlan",),  # irdma
            "ip4InTruncatedPkts": ("ip4_truncated",),
            "ip6InTruncatedPkts": ("ip6_truncated",),
            "ip4OutNoRoutes": ("ip4_no_route",),
            "ip6OutNoRoutes": ("ip6_no_route",),
            "tx_disable_drop_cnt": ("transmit_disabled",),  # erdma
            "rx_disable_drop_cnt": ("receive_disabled",),
            "tx_bps_limit_drop_cnt": ("transmit_byte_limit",),
            "rx_bps_limit_drop_cnt": ("receive_byte_limit",),
            "tx_pps_limit_drop_cnt": ("transmit_packet_limit",),
            "rx_pps_limit_drop_cnt": ("receive_packet_limit",),
        },
    ),
)
"""Metrics that InfiniBand's standard counters have too, or that concern the port as a whole."""

CONGESTION: tuple[Family, ...] = (
    same(
        "cnp_sent",
        "packets",
        "Congestion notifications sent: the port received marked packets and told their sender to slow down. Growth "
        "means congestion on the way to this port.",
        *("np_cnp_sent", "np_cnp_pkts", "tx_cnp_pkts", "tx_rdma_cnp_pkts", "cnpSent", "sent_cnps", "tx_cnp_pkt"),
    ),
    same(
        "cnp_handled",
        "packets",
        "Congestion notifications received: the port was told to send more slowly, and did. Growth means congestion on "
        "the way from this port.",
        *("rp_cnp_handled", "rx_cnp_pkts", "rx_rdma_cnp_pkts", "cnpHandled", "received_cnps", "rx_cnp_pkt"),
        "DcRcvBcn",  # hfi1 calls it BECN
    ),
    same(
        "cnp_ignored",
        "packets",
        "Congestion notifications received and ignored. Growth means that congestion control is off or misconfigured.",
        *("rp_cnp_ignored", "cnpIgnored"),
    ),
    same(
        "ecn_marked_packets",
        "packets",
        "Packets received with a congestion mark from a switch.",
        *("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "rx_rdma_ecn_pkts", "RxECNMrkd", "received_ecns"),
        "DcRcvFcn",  # hfi1 calls it FECN
    ),
)

RELIABILITY: tuple[Family, ...] = (
    same(
        "out_of_sequence_packets",
        "packets",
        "Packets received out of sequence: earlier ones were lost, or came by another path.",
        *("out_of_sequence", "oos_drop_count", "resp_rx_outouf_seq", "Rcvd Out of order packets", "responder_oos"),
        *("out_of_seq_request", "rq_num_oos", "RcSeqNak"),
    ),
    same(
        "sequence_naks",
        "packets",
        "Negative acknowledgements received for a gap in the sequence: the peer missed packets of this port, which are "
        "sent again.",
        *("packet_seq_err", "seq_err_naks_rcvd", "req_rx_pkt_seq_err", "Nak Sequence Error", "requester_oos_nak"),
        *("rcvd_seq_err", "sq_num_oos", "SeqNak"),
    ),
    same(
        "implied_naks",
        "packets",
        "Responses that arrived before an expected earlier one, which was lost.",
        *("implied_nak_seq_err", "missing_resp", "req_rx_impl_nak_seq_err", "Nak Sequence Error Implied"),
        "requester_implicit_nak",
    ),
    same(
        "ack_timeouts",
        "timeouts",
        "Times that no acknowledgement came in time and packets were sent again. Each stalls its queue pair for "
        "the length of the timeout, often seconds.",
        *("local_ack_timeout_err", "to_retransmits", "tx_rdma_ack_timeout", "RTO", "requester_timeout", "sq_num_to"),
        *("retrans_timeout_events", "RcTimeOut"),  # efa, hfi1
    ),
    same(
        "rnr_naks_received",
        "packets",
        "Negative acknowledgements received because the peer had no receive buffer ready.",
        *("rnr_nak_retry_err", "rnr_naks_rcvd", "req_rx_rnr_retry_err", "RNR received", "requester_rnr_nak"),
        *("rcvd_rnr_err", "sq_num_rnr", "RnrNak"),
    ),
    same(
        "rnr_naks_sent",
        "packets",
        "Negative acknowledgements sent because no receive buffer was ready here.",
        *("resp_tx_rnr_retry_err", "RNR sent", "responder_rnr_nak", "send_rnr_err", "rq_num_rnr"),
    ),
    same(
        "out_of_buffer_packets",
        "packets",
        "Packets dropped because the queue pair had no receive buffer: the application was too slow to post one.",
        *("out_of_buffer", "rx_out_of_buffer", "resp_rx_outof_buf"),
    ),
    kinds(
        "receive_discards",
        "packets",
        ("traffic",),
        "Packets received and discarded. Some drivers count parts only: the label traffic names the part, and "
        "the parts add up.",
        {
            "rx_drops": ("",),  # efa
            "rx_roce_discards": ("",),  # bnxt_re
            "DcDroppedPkt": ("",),  # hfi1, of the device
            "PktDrop": ("",),  # hfi1, of the port
            "ip4InDiscards": ("ip4",),  # irdma
            "ip6InDiscards": ("ip6",),
        },
    ),
    same(
        "duplicate_requests",
        "requests",
        "Requests received a second time: the peer got no acknowledgement and sent them again.",
        *("duplicate_request", "dup_req", "resp_rx_dup_request", "responder_dup_request", "rq_num_dup"),
        "RcDupRew",  # hfi1's own spelling
    ),
    same(
        "retransmitted_packets",
        "packets",
        "Packets sent again.",
        *("retrans_pkts", "tx_rdma_retx_pkts", "tcpRetransSegs", "RetransSegs", "RcResend"),
    ),
    same("retransmitted_bytes", "bytes", "Bytes sent again.", "retrans_bytes", "tx_rdma_retx_bytes"),
    same(
        "adaptive_retransmits",
        "retransmits",
        "Retransmissions that RoCE's adaptive retransmission began.",
        "roce_adp_retrans",
    ),
    same(
        "adaptive_retransmit_timeouts",
        "timeouts",
        "Timeouts of RoCE's adaptive retransmission.",
        "roce_adp_retrans_to",
    ),
    same("slow_restarts", "restarts", "Times that RoCE restarted a flow slowly after a loss.", "roce_slow_restart"),
    same(
        "slow_restart_cnps",
        "packets",
        "Congestion notifications that RoCE's slow restart generated.",
        "roce_slow_restart_cnps",
    ),
    same(
        "slow_restart_transitions",
        "transitions",
        "Times that RoCE's slow restart changed its state.",
        "roce_slow_restart_trans",
    ),
    kinds(
        "retries_exceeded",
        "failures",
        ("retry",),
        "Times that a queue pair gave up after its last retry: the peer did not answer (transport) or was never ready "
        "(rnr). Each of these breaks a connection, and usually ends the job.",
        {
            "req_transport_retries_exceeded": ("transport",),  # mlx5
            "max_retry_exceeded": ("transport",),  # bnxt_re
            "req_tx_retry_excd_err": ("transport",),  # ionic
            "requester_retries_exceeded": ("transport",),  # mana
            "retry_exceeded_err": ("transport",),  # rxe
            "sq_num_tree": ("transport",),  # mlx4
            "req_rnr_retries_exceeded": ("rnr",),
            "requester_rnr_nak_retries_exceeded": ("rnr",),
            "retry_rnr_exceeded_err": ("rnr",),
            "sq_num_rree": ("rnr",),
        },
    ),
    same(
        "unresponsive_remotes",
        "events",
        "Times that a peer did not answer (EFA).",
        "unresponsive_remote_events",
    ),
    same(
        "impaired_remotes",
        "events",
        "Times that a connection to a peer became impaired, and its rate was limited (EFA).",
        "impaired_remote_conn_events",
    ),
)

WORK: tuple[Family, ...] = (
    kinds(
        "requests_received",
        "requests",
        ("operation",),
        "Requests that peers sent to this port, by operation.",
        {
            "rx_read_requests": ("read",),  # mlx5, mana, bnxt_re since 6.17
            "rx_write_requests": ("write",),
            "rx_atomic_requests": ("atomic",),
            "rx_send_requests": ("send",),
            "rx_dct_connect": ("dct_connect",),
            "rx_read_req": ("read",),  # bnxt_re
            "rx_write_req": ("write",),
            "rx_atomic_req": ("atomic",),
            "rx_send_req": ("send",),
            "iwInRdmaReads": ("read",),  # irdma
            "iwInRdmaWrites": ("write",),
            "iwInRdmaSends": ("send",),
            "Rx atomics": ("atomic",),
            "recv_wrs": ("send",),  # efa
            "rdma_recvs": ("send",),  # rxe
        },
    ),
    kinds(
        "requests_sent",
        "requests",
        ("operation",),
        "Requests that this port sent to its peers, by operation.",
        {
            "tx_read_req": ("read",),  # bnxt_re
            "tx_write_req": ("write",),
            "tx_atomic_req": ("atomic",),
            "tx_send_req": ("send",),
            "iwOutRdmaReads": ("read",),  # irdma
            "iwOutRdmaWrites": ("write",),
            "iwOutRdmaSends": ("send",),
            "Tx atomics": ("atomic",),
            "rdma_read_wrs": ("read",),  # efa
            "rdma_write_wrs": ("write",),
            "send_wrs": ("send",),
            "rdma_sends": ("send",),  # rxe
        },
    ),
    kinds(
        "operation_bytes",
        "bytes",
        ("operation",),
        "Payload by operation (EFA): sent by send, write and read_response, received by receive, write_receive and "
        "read.",
        {
            "send_bytes": ("send",),
            "recv_bytes": ("receive",),
            "rdma_read_bytes": ("read",),
            "rdma_read_resp_bytes": ("read_response",),
            "rdma_write_bytes": ("write",),
            "rdma_write_recv_bytes": ("write_receive",),
        },
    ),
)
