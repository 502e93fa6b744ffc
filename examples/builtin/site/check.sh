# Every link of a page leads to a page that is there.
for page in *.html; do
  for link in $(sed -n 's/.*href="\([^"]*\)".*/\1/p' "$page"); do
    test -e "$link" || { echo "$page: there is no $link"; exit 1; }
  done
done
