// Helm. With the argument `serve` it runs a command for each line of its input, a JSON list of arguments, and answers
// with a line of JSON: most of what `helm template` takes is the start of the process.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth"

	"helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
)

type answer struct {
	Output string `json:"output"`
	Error  string `json:"error"`
}

func main() {
	kube.ManagedFieldsManager = "helm"
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serve()
		return
	}
	if err := run(os.Stdout, os.Stderr, os.Args[1:]); err != nil {
		var failed cmd.CommandError
		if errors.As(err, &failed) {
			os.Exit(failed.ExitCode)
		}
		os.Exit(1)
	}
}

func run(out, err io.Writer, arguments []string) error {
	root, failed := cmd.NewRootCmd(out, arguments, cmd.SetupLogging)
	if failed != nil {
		return failed
	}
	root.SetArgs(arguments)
	root.SetOut(out)
	root.SetErr(err)
	return root.Execute()
}

func serve() {
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var arguments []string
		if err := json.Unmarshal(lines.Bytes(), &arguments); err != nil {
			log.Fatal(err)
		}
		var out bytes.Buffer
		var found answer
		if err := run(&out, &out, arguments); err != nil {
			found.Error = err.Error()
		}
		found.Output = out.String()
		if err := answers.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}
