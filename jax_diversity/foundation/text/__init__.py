"""Functions about text that every stage uses: words, sentences, scripts, terms and licences."""
