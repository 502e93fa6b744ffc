package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	called "@IMPORT@"
)

func main() {
	asked, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	// What the function prints is not its answer.
	answers := os.Stdout
	os.Stdout = os.Stderr
	answer, err := called.@FUNCTION@(string(asked))
	if err != nil {
		document, _ := json.Marshal(map[string]any{"error": map[string]string{
			"kind": "thrown", "type": fmt.Sprintf("%T", err), "message": err.Error()}})
		fmt.Fprintf(answers, "\n%s%s\n", os.Args[1], document)
		os.Exit(1)
	}
	fmt.Fprintf(answers, "\n%s{\"ok\":%s}\n", os.Args[1], answer)
}
