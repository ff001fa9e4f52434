"""Every format in which drivers have reported of a fault."""

import pytest

from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.faults.xid_patterns import RecognisedFault, recognise
from agent.observations import KernelLogLine, find_pci

FORMATS = [
    (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        ("xid", 79, "0000:3b:00", "", {"xid_code": 79, "pid": 1234, "process": "python"}),
    ),
    (
        "NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.",
        ("xid", 79, "0000:3b:00", "", {"xid_code": 79}),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
        ("xid", 79, "0000:3b:00", "", {"xid_code": 79}),
    ),
    ("NVRM: Xid (0000:03:00): 6, PE0001", ("xid", 6, "0000:03:00", "", {"xid_code": 6})),
    (
        "NVRM: Xid (0003:00): 13, 0003 00000000 00008297 00001a14",
        ("xid", 13, "0000:03:00", "", {"xid_code": 13}),
    ),
    ("NVRM: Xid: 8, Channel 0000001e", ("xid", 8, "", "", {"xid_code": 8, "channel": "0000001e"})),
    (
        "NVRM: Xid (PCI:0000:3b:00.0): 31, Ch 00000010, intr 10000000. MMU Fault: ENGINE GRAPHICS",
        ("xid", 31, "0000:3b:00", "", {"xid_code": 31, "channel": "00000010"}),
    ),
    (
        "NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, pid=7194, name=nvc, Ch 0000000c",
        (
            "xid",
            94,
            "0000:05:00",
            "",
            {
                "xid_code": 94,
                "gpu_instance": 5,
                "pid": 7194,
                "process": "nvc",
                "channel": "0000000c",
            },
        ),
    ),
    ("NVRM: Xid (PCI:000a:3b:00): 63", ("xid", 63, "000a:3b:00", "", {"xid_code": 63})),
    (
        "NVRM: Xid (PCI:0000:3b:00): 999999",
        ("xid", 999_999, "0000:3b:00", "", {"xid_code": 999_999}),
    ),
    (
        (
            "NVRM: Xid (PCI:0000:cb:00): 154, pid=1, name=a b, GPU recovery action changed "
            "from 0x0 (None) to 0x2 (Node Reboot Required)"
        ),
        (
            "xid",
            154,
            "0000:cb:00",
            "Node Reboot Required",
            {
                "xid_code": 154,
                "pid": 1,
                "process": "a b",
                "recovery_action": "Node Reboot Required",
                "recovery_action_code": 2,
                "recovery_action_was": "None",
            },
        ),
    ),
    (
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 "
            "(0x004505c6 0x00000001 0x00000000)"
        ),
        (
            "xid",
            149,
            "0018:01:00",
            "NETIR_LINK_EVT",
            {
                "xid_code": 149,
                "severity": "fatal",
                "nvlink": 8,
                "cross_contain": "XC0",
                "injected": False,
                "intr_info": 0x004505C6,
                "error_status": 1,
                "registers": "0x004505c6 0x00000001 0x00000000",
                "resolution": "RESET_GPU",
                "investigate": "INVESTIGATE_LINK_SI",
                "decoded_severity": "link-fatal",
            },
        ),
    ),
    (
        "NVRM: Xid (PCI:0000:05:00): 145, RLW_REMAP Nonfatal XC1 i1 Link -1 (0x82,0x40)",
        (
            "xid",
            145,
            "0000:05:00",
            "RLW_REMAP",
            {
                "xid_code": 145,
                "severity": "nonfatal",
                "nvlink": -1,
                "cross_contain": "XC1",
                "injected": True,
                "intr_info": 0x82,
                "error_status": 0x40,
                "registers": "0x82 0x40",
                "resolution": "RESET_GPU",
                "investigate": "CONTACT_SUPPORT",
                "decoded_severity": "fatal",
            },
        ),
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up",
        (
            "sxid",
            20034,
            "0000:c1:00",
            "fatal",
            {"sxid_code": 20034, "nvswitch": 3, "severity": "fatal", "fatal": True, "nvlink": 32},
        ),
    ),
    (
        "nvidia-nvswitch: SXid (PCI:0000:c1:00.0): 24007, Non-fatal, Link 46 timeout (First)",
        (
            "sxid",
            24007,
            "0000:c1:00",
            "nonfatal",
            {"sxid_code": 24007, "severity": "nonfatal", "fatal": False, "nvlink": 46},
        ),
    ),
    (
        "NVRM: GPU at 0000:03:00.0 has fallen off the bus.",
        ("fallen_off_bus", 0, "0000:03:00", "", {}),
    ),
    (
        "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        ("fallen_off_bus", 0, "0000:9b:00", "", {}),
    ),
    ("NVRM: GPU 0000:9b:00.0: GPU is lost", ("gpu_lost", 0, "0000:9b:00", "", {})),
    (
        "NVRM: nvCheckOk: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0F)",
        ("gpu_lost", 0, "", "", {}),
    ),
]


@pytest.mark.parametrize(("text", "expected"), FORMATS, ids=[f[0][:60] for f in FORMATS])
def test_every_format_is_recognised(text: str, expected: tuple[object, ...]):
    """Kind, code, address, subcode and metrics come out of each format."""
    found = recognise(text)
    assert found is not None
    assert (found.kind, found.code, found.pci, found.subcode, found.metrics) == expected
    assert found.message == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: GPU at PCI:0000:3b:00: GPU-2d834c7f-fd68-bc01-3be0-786206f2ee78",
        "NVRM: GPU Board Serial Number: 1650522003820",
        "NVRM: A GPU crash dump has been created.",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "nvidia 0000:3b:00.0: enabling device (0000 -> 0003)",
        "audit: comm=NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "usb 1-1: fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): none",
        "NVRM: Xid (PCI:0000:3b:00)",
        "NVRM: Xid (PCI:0000:3b:00): 12345678901234567890, x",
    ],
)
def test_other_lines_are_no_fault(text: str):
    """Information, other devices, quotations and mangled lines report no fault."""
    assert recognise(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("10000:3b:00.0", "10000:3b:00"),
        ("3b:00.0", "0000:3b:00"),
        ("at PCI:0001:01:00: ", "0001:01:00"),
        ("GPU-2d834c7f-fd68", ""),
    ],
)
def test_addresses_have_one_form(text: str, expected: str):
    """NVML, the kernel and old drivers write addresses differently; they come out alike."""
    assert find_pci(text) == expected


def scan(*texts: str, facility: int = 0, any_facility: bool = False) -> list[RecognisedFault]:
    """Scan lines in order."""
    scanner = KernelLogScanner(any_facility=any_facility)
    found = (scanner.scan(KernelLogLine(text, facility=facility)) for text in texts)
    return [each for each in found if each is not None]


def test_a_message_over_several_lines_names_its_gpu():
    """The address may stand in an earlier line than the fault."""
    found = scan(
        "NVRM: The NVIDIA GPU 0000:41:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [(each.kind, each.pci) for each in found] == [("fallen_off_bus", "0000:41:00")]


def test_registers_of_an_sxid_are_not_another_one():
    """An SXID's further lines say nothing new, but one without a first line is not lost."""
    front = "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 24007, "
    lines = ["Non-fatal, Link 46 timeout", "Severity 0 Engine instance 46", "Data {0x1, 0x2}"]
    assert len(scan(*(front + line for line in lines))) == 1
    assert len(scan(front + lines[2])) == 1


@pytest.mark.parametrize(("any_facility", "expected"), [(False, 0), (True, 1)])
def test_a_process_cannot_forge_a_fault(any_facility: bool, expected: int):
    """Lines that the kernel did not write count only where a drill allows them."""
    assert len(scan(FORMATS[0][0], facility=1, any_facility=any_facility)) == expected
