# Writes one part; joins the parts it depends on, if there are any.
set -eu
mkdir -p parts
case "$1" in
  agent-4) cat parts/agent-1.txt parts/agent-2.txt > parts/agent-4.txt ;;
  agent-5) cat parts/agent-3.txt > parts/agent-5.txt ;;
  *) echo "$2" > "parts/$1.txt" ;;
esac
