"""Text in general: words, sentences, scripts, terms and licences, for every stage."""
