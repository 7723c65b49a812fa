// Command app is the entrypoint of the test images. It prints the facts of its image and waits for a signal to stop.
//
// It is built for the machine that runs the tests, and is in images of every platform. So a container of another
// platform runs without emulation and still identifies its image. The facts are in two places, the image's config (an
// environment variable) and the root filesystem (a file), because a container may wrongly mix the two.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) > 1 {
		os.Exit(command(os.Args[1], os.Args[2:]))
	}
	fmt.Printf("%s rootfs=%s uid=%d\n", os.Getenv("IMAGEPIN_FACTS"), rootfs(), os.Getuid())
	<-stop
}

func rootfs() string {
	b, err := os.ReadFile("/facts")
	if err != nil {
		return "missing"
	}
	return strings.TrimSpace(string(b))
}

// command runs the command in the arguments and returns the exit code.
func command(name string, args []string) int {
	switch name {
	case "cat":
		for _, path := range args {
			b, err := os.ReadFile(path)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println(strings.TrimRight(string(b), "\n"))
		}
	case "ls":
		for _, path := range args {
			entries, err := os.ReadDir(path)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			for _, e := range entries {
				fmt.Println(e.Name())
			}
		}
	case "write":
		if err := os.WriteFile(args[0], []byte(strings.Join(args[1:], " ")+"\n"), 0o644); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("written")
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			fmt.Println(err)
			return 2
		}
		fmt.Printf("exiting %d\n", code)
		return code
	default:
		fmt.Printf("unknown command %q\n", name)
		return 2
	}
	return 0
}
