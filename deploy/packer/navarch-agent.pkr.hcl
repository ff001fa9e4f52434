# A machine image that holds the GPU driver, the Navarch agent and its unit, so that a new node is
# in service minutes earlier than one that installs them at its first boot. docs/bootstrap.md.
#
#     packer init deploy/packer              # Packer 1.7 and later: fetches the Amazon plugin
#     packer validate -var package=https://example.com/navarch-0.1.0-py3-none-any.whl deploy/packer
#     packer build -var region=us-east-1 -var package=… deploy/packer

variable "region" {
  type    = string
  default = "us-east-1"
}

variable "instance_type" {
  type        = string
  default     = "g4dn.xlarge"
  description = "Any type with an NVIDIA GPU: the driver is tried before the image is kept."
}

variable "driver" {
  type        = string
  default     = "nvidia-driver-570-server-open"
  description = "Ubuntu's package of the driver."
}

variable "fabric_manager" {
  type        = string
  default     = "nvidia-fabricmanager-570"
  description = "For machines with NVSwitch; of the driver's own version. Empty: none."
}

variable "package" {
  type        = string
  description = "What pip installs: `navarch[credentials] @ URL` of a wheel; a bare name only from an index of yours."
}

source "amazon-ebs" "agent" {
  region        = var.region
  instance_type = var.instance_type
  ssh_username  = "ubuntu"
  ami_name      = "navarch-agent-${formatdate("YYYYMMDD-hhmmss", timestamp())}"

  source_ami_filter {
    most_recent = true
    owners      = ["099720109477"] # Canonical
    filters = {
      name                = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = 50
    volume_type           = "gp2"
    delete_on_termination = true
  }

  tags = {
    Name   = "navarch-agent"
    driver = var.driver
  }
}

build {
  sources = ["source.amazon-ebs.agent"]

  provisioner "file" {
    source      = "${path.root}/../../config/navarch-agent.service"
    destination = "/tmp/navarch-agent.service"
  }

  provisioner "shell" {
    script = "${path.root}/install.sh"
    environment_vars = [
      "DRIVER=${var.driver}",
      "FABRIC_MANAGER=${var.fabric_manager}",
      "PACKAGE=${var.package}",
    ]
    execute_command = "sudo -n env {{ .Vars }} sh {{ .Path }}"
  }
}
