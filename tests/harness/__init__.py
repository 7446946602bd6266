"""What tests share, each thing once: waiting, clocks, certificates, stub servers, served agents,
processes and commands. Modules here may import `dragoman` and each other, and no test.
"""
