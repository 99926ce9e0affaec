"""What each XID means and what to do about it: one table, for the alerts, the runbook and docs/xids.md.

    python -m whyidle.alerts.xids           # writes docs/xids.md
    python -m whyidle.alerts.xids --check   # fails if docs/xids.md is not up to date

Source: NVIDIA's Xid catalogue for Ampere and newer GPUs, as of October 2025,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. It gives an immediate and an investigatory action.
The class of an XID follows from its immediate action. RESTART_APP and IGNORE are `software`. RESET_GPU, RESTART_VM,
RESTART_BM and the workflows for XIDs 48, 74 and 144 to 150 are `reset`. CHECK_MECHANICALS and an immediate
CONTACT_SUPPORT are `service`. These XIDs have another source:

- 64 and 157 mean that bad memory could not be replaced. They are `service`. The catalogue's immediate actions are a
  reset for 64 and none for 157, and then support. NVIDIA's guide on GPU memory errors says to replace a GPU after a
  failed row remap.
- 61 is unused in this catalogue. On older GPUs it means that a micro-controller halted, as 62 does.
- 154 only announces the action that another XID needs. NVML's events do not contain that action.
- 167 to 169, 171 and 172 have no action in the catalogue. The XIDs 171 and 172 are details of
  48, 169 is a halt like 62, and 167 is a timeout of the bus, which a reboot clears, as for 79. After 168, enable ECC or
  reboot.
- The catalogue lists further numbers as unused, with CONTACT_SUPPORT. They are not in this table, and no alert says
  that they are harmless.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Class = Literal["software", "reset", "service"]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "xids.md"
CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

TITLES: dict[Class, str] = {
    "software": "The program, or a note of the driver",
    "reset": "A reset of the GPU, or a restart of the node",
    "service": "A technician, or another GPU",
}


class Xid(NamedTuple):
    """Numbers with the same meaning. ``do`` says in one or two sentences what to do when the alert fires."""

    numbers: tuple[int, ...]
    means: str
    of: Class
    do: str


_OWN_FAULT = "Tell the owner of the job. If this happens on the same GPU in several jobs, treat the GPU as broken."
_ENGINE = "Restart the job. Contact NVIDIA's support if it happens again."
_NOTHING = "Nothing to do. Contact NVIDIA's support if it continues."
_RESET = "Drain the node and reset the GPU. Contact NVIDIA's support if it happens again."
_FIRMWARE = "Drain the node and reset the GPU. Update driver and firmware if it happens again."
_MEMORY = "Drain the node and reset the GPU, so that the bad memory is replaced. Replace the GPU if it happens again."
_SUPPORT = "Drain the node and contact NVIDIA's support: the GPU's own flash memory cannot be used."

XIDS: tuple[Xid, ...] = (
    # -- the program, or a note of the driver
    Xid((13,), "exception in a compute or graphics engine, usually an address out of bounds", "software", _OWN_FAULT),
    Xid((31,), "page fault in GPU memory", "software", _OWN_FAULT),
    Xid((11, 25, 32, 69, 80), "invalid or corrupted commands to the GPU", "software", _OWN_FAULT),
    Xid((8, 43), "the GPU stopped the program's work", "software", _OWN_FAULT),
    Xid((44, 141), "fault of an engine at a context switch, or in CUDA's fast path", "software", _OWN_FAULT),
    Xid((45,), "the driver ended the program after another error, or a signal", "software",
        "Look at the other XIDs of the GPU. If there is none, somebody ended the job."),
    Xid((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "exception in a copy engine", "software", _ENGINE),
    Xid((60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139), "exception in a video or image engine", "software",
        _ENGINE),
    Xid((94,), "contained memory error: only the program that met it is affected", "software",
        "Restart the job. Reset the GPU when it is free, so that the bad memory is replaced."),
    Xid((63,), "a row of memory will be replaced by a spare one", "software",
        "Nothing to do now. Reset the GPU when it is free, so that the row is replaced."),
    Xid((92,), "many corrected memory errors", "software", _NOTHING),
    Xid((37, 38, 66, 67, 93, 108, 121, 137, 152, 153, 159, 160, 161, 166, 170), "note from the driver or a link",
        "software", _NOTHING),
    Xid((78,), "a virtual GPU could not start", "software", "Install matching drivers on the host and in the guest."),
    Xid((106, 107), "test message", "software", "Nothing to do."),
    Xid((162, 163, 164, 165), "state of the power smoothing circuit", "software",
        "Tell the people who manage the power of the rack: swings may no longer be smoothed."),
    # -- a reset of the GPU, or a restart of the node
    Xid((46,), "the GPU stopped processing", "reset", _RESET),
    Xid((48, 140, 171, 172), "memory error that ECC could not correct", "reset", _MEMORY),
    Xid((95,), "uncontained memory error: any program on the GPU may be affected", "reset", _MEMORY),
    Xid((61, 62, 169), "a micro-controller in the GPU halted", "reset", _FIRMWARE),
    Xid((119, 120), "the GPU's system processor (GSP) does not answer, or failed", "reset", _FIRMWARE),
    Xid((109, 158), "timeout of a context switch, or a fatal timeout", "reset", _RESET),
    Xid((110,), "security fault", "reset", _FIRMWARE),
    Xid((143,), "the GPU could not be initialised", "reset", _RESET),
    Xid((74,), "error of an NVLink", "reset",
        "Drain the node and reset all of its GPUs. Have the board or the bridge checked if it happens again."),
    Xid((136,), "the training of an NVLink failed", "reset",
        "Drain the node and reset all of its GPUs. Have the link checked if it happens again."),
    Xid(tuple(range(144, 151)), "error of an NVLink of Blackwell", "reset",
        "Look at the full message in dmesg. After a fatal error, reset the GPUs at both ends. Others need no action."),
    Xid((155,), "error of a software-defined NVLink", "reset", _RESET),
    Xid((151,), "key rotation failed (confidential computing)", "reset", "Restart the virtual machine."),
    Xid((154,), "the driver asks for a different action to recover the GPU", "reset",
        "Look at the message in dmesg: it names the action (none, a reset, a reboot, or a drain)."),
    Xid((156,), "a part of the GPU will be taken out of use", "reset", "Drain the node and reset the GPU."),
    Xid((79,), "the GPU fell off the bus", "reset",
        "Drain and reboot the node. Reseat the GPU, check its power, then replace it if it happens again."),
    Xid((167,), "fatal timeout on PCIe", "reset",
        "Drain and reboot the node. Reseat the GPU, then replace it if it happens again."),
    Xid((168,), "the GPU has less memory than it should", "reset",
        "Enable ECC if it is off, and reboot the node."),
    # -- a technician, or another GPU
    Xid((54,), "auxiliary power is not connected", "service", "Have a technician look at the power cable of the GPU."),
    Xid((64, 157), "bad memory could not be replaced by spare memory", "service",
        "Drain the node and reset the GPU. Replace it if the error comes back."),
    Xid((122, 123, 124, 125), "the GPU's flash memory cannot be read or written", "service", _SUPPORT),
    Xid((142,), "exception in a video encoder, which NVIDIA asks users to report", "service",
        "Contact NVIDIA's support."),
)  # fmt: skip


def numbers(of: Class) -> tuple[int, ...]:
    """The numbers of the XIDs in a class, sorted."""
    return tuple(sorted(number for xid in XIDS if xid.of == of for number in xid.numbers))


def pattern(of: Class) -> str:
    """A regular expression for the label `xid`. It has no anchors: PromQL adds them."""
    return "|".join(map(str, numbers(of)))


def template(of: Class, otherwise: str) -> str:
    """A Prometheus template that says what to do, by the label `xid`; ``otherwise`` if it is not in the table."""
    by_text: dict[str, list[int]] = {}
    for xid in XIDS:
        if xid.of == of:
            by_text.setdefault(f"{xid.means}. {xid.do}", []).extend(xid.numbers)
    cases = [
        f'if match "^({"|".join(map(str, which))})$" $labels.xid }}}}{text[0].upper()}{text[1:]}'
        for text, which in by_text.items()
    ]
    return "{{ " + "{{ else ".join(cases) + "{{ else }}" + otherwise + "{{ end }}"


def page() -> str:
    """The text of docs/xids.md."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# XIDs\n"
    yield "Generated from `alerts/xids.py` by `make docs`; edit that.\n"
    yield (
        f"An XID is the number of an error that NVIDIA's driver reports for a GPU. The classes follow\n"
        f"[NVIDIA's catalogue]({CATALOGUE}) for Ampere and newer\n"
        "GPUs; `alerts/xids.py` says which numbers rest on something else. An XID is a starting point, not a proof:\n"
        "the line in `dmesg` has the details.\n"
    )
    alerts = {
        "software": "`WhyidleGpuXid`, info",
        "reset": "`WhyidleGpuXidReset`, warning",
        "service": "`WhyidleGpuService`, critical if ranks run on the node, otherwise warning",
    }
    for of, title in TITLES.items():
        yield f"## {title}\n"
        yield f"Alert: {alerts[of]}.\n"
        yield "| XID | means | do |"
        yield "| --- | --- | --- |"
        for xid in XIDS:
            if xid.of == of:
                yield f"| {_ranges(xid.numbers)} | {xid.means} | {xid.do} |"
        yield ""
    yield "## Any other\n"
    yield (
        "`WhyidleGpuXid` says that the number is not in this table: look it up in the catalogue. The agent counts 16\n"
        "numbers of a GPU separately, and further ones as `other`."
    )


def _ranges(which: tuple[int, ...]) -> str:
    """Numbers as text, with ranges of three or more joined: `144–150, 155`."""
    runs: list[list[int]] = []
    for number in sorted(which):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/xids.md from the table of XIDs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/xids.md differs from the table in alerts/xids.py: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
