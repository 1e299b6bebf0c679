"""What users and stores of other people test with: a scripted model, conformance kits, a crash harness, a simulator."""
