// Command protogen generates Go code from protobuf files without protoc. It
// compiles the files and runs protoc's plugins for Go, which are tools of this
// module.
//
//	go run ./protogen [-check] DIR FILE...
//
// Files and imports are relative to DIR. Generated files are written beside
// them. With -check nothing is written, and the exit code is 1 if a generated
// file is out of date.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugins are the tools that generate code. Each gets the same request.
var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	check := flag.Bool("check", false, "write nothing, fail if a generated file is out of date")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: protogen [-check] DIR FILE...")
		os.Exit(2)
	}
	emit := write
	if *check {
		emit = compare
	}
	if err := run(context.Background(), flag.Arg(0), flag.Args()[1:], emit); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// run generates code from files below dir and calls emit for each generated
// file.
func run(ctx context.Context, dir string, files []string, emit func(path string, content []byte) error) error {
	request, err := compile(ctx, dir, files)
	if err != nil {
		return err
	}
	var failed []error
	for _, plugin := range plugins {
		response, err := generate(ctx, plugin, request)
		if err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
		for _, f := range response.GetFile() {
			path := filepath.Join(dir, filepath.FromSlash(f.GetName()))
			failed = append(failed, emit(path, []byte(f.GetContent())))
		}
	}
	return errors.Join(failed...)
}

// compile returns the request that protoc would send to its plugins.
func compile(ctx context.Context, dir string, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return nil, err
	}
	return &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      withImports(compiled),
	}, nil
}

// withImports returns files and all their imports, each after its own imports.
func withImports(files linker.Files) []*descriptorpb.FileDescriptorProto {
	var all []*descriptorpb.FileDescriptorProto
	seen := make(map[string]bool)
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		imports := f.Imports()
		for i := range imports.Len() {
			add(imports.Get(i).FileDescriptor)
		}
		all = append(all, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	return all
}

// generate runs a plugin in the version that this module requires.
func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return &response, nil
}

func write(path string, content []byte) error {
	return os.WriteFile(path, content, 0o644)
}

func compare(path string, content []byte) error {
	current, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !bytes.Equal(current, content) {
		return fmt.Errorf("%s is out of date: run make generate", path)
	}
	return nil
}
