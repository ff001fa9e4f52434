"""Where observations come from: kernel log, NVML, cloud metadata service, /proc."""
