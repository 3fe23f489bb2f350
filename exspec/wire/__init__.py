"""grpc and protobuf live here: conversion, the status table, channels, servers, registration."""
