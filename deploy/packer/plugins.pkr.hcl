# Packer 1.7 and later; an older one has the Amazon builder in itself, and is given this directory
# without this file.
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2"
    }
  }
}
