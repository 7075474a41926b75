"""Words that built-in tasks are put together from."""

from __future__ import annotations

__all__ = [
    "ACTIONS",
    "CODE_FORMS",
    "CODE_LANGUAGES",
    "FIELDS",
    "FOLLOW_UPS",
    "FORMS",
    "LANGUAGES",
    "LENGTHS",
    "MANNERS",
    "NAMES",
    "OBJECTS",
    "PLACES",
    "PROBLEMS",
    "READERS",
    "ROLES",
    "STYLES",
    "TIMES",
    "TOPICS",
    "TRADES",
]


def _list(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


TOPICS = _list("""
    volcanoes; glaciers; the water cycle; earthquakes; the phases of the moon; black holes;
    comets; the planet Mars; gravity; magnetism; electricity; sound waves; rainbows; lightning;
    friction; heat pumps; batteries; solar panels; wind turbines; nuclear power; steam engines;
    bicycles; sailing boats; railways; bridges; tunnels; skyscrapers; lighting at home;
    refrigerators; clocks; the periodic table; acids and bases; rust; soap; glass; concrete;
    paper; plastics; steel; salt; cells; DNA; evolution; vaccines; antibiotics; the human heart;
    the lungs; sleep; memory; pain; the immune system; digestion; vitamins; bacteria; viruses;
    fungi; mosses; oak trees; orchids; cacti; bees; ants; spiders; butterflies; owls; penguins;
    whales; dolphins; sharks; octopuses; wolves; bears; cats; dogs; horses; elephants; dinosaurs;
    mammoths; coral reefs; rainforests; deserts; wetlands; rivers; mountains; islands; caves;
    soil; compost; pruning roses; herbs; growing potatoes; bread; cheese; coffee; tea; chocolate;
    olive oil; rice; noodles; pancakes; soup; salad; curry; pizza; apple pie; spices;
    fermentation; knives; cooking for guests; the Roman Empire; ancient Egypt; the Silk Road; the
    Vikings; the Middle Ages; castles; knights; the printing press; the Renaissance; the French
    Revolution; the Industrial Revolution; slavery; the First World War; the Cold War;
    decolonization; the history of money; the Olympic Games; Athens; Paris; Istanbul; Cairo;
    Nairobi; Mumbai; Tokyo; Sydney; New York; Mexico City; Lima; the Alps; the Sahara; the Amazon;
    the Arctic; Iceland; Japan; Brazil; Kenya; Canada; Scotland; inflation; taxes; interest rates;
    the stock market; insurance; small businesses; budgets; negotiation; advertising; trade;
    unemployment; housing; public transport; traffic; recycling; climate change; air pollution;
    fresh water; elections; constitutions; courts; human rights; privacy; free speech; copyright;
    journalism; libraries; museums; schools; homework; exams; learning a language; mathematics at
    school; prime numbers; fractions; probability; statistics; geometry; logic; algorithms;
    encryption; computer networks; databases; operating systems; programming languages; artificial
    intelligence; robots; smartphones; video games; the Internet; email; passwords; spam; open
    source software; photography; films; theatre; opera; jazz; guitars; pianos; drums; choirs;
    dancing; painting; sculpture; pottery; poetry; novels; fairy tales; comics; chess; football;
    tennis; swimming; running; climbing; hiking; yoga; camping; fishing; knitting; sewing;
    carpentry; repairing a bike; cleaning a kitchen; moving house; job interviews; meetings;
    working from home; stress; friendship; jealousy; courage; honesty; patience; humour; grief;
    happiness; loneliness; family; growing old; pets; babies; birthdays; weddings; holidays; first
    aid; colds; headaches; back pain; healthy eating; sugar; smoking; exercise; teeth; eyes
""")

FORMS = _lines("""
    Write {length} about {topic}.
    Explain {topic} to {reader}.
    What should everyone know about {topic}?
    Give me five interesting facts about {topic}.
    What are the most common mistakes people make with {topic}?
    List the advantages and disadvantages of {topic}.
    Compare {topic} and {other}.
    What do {topic} and {other} have in common?
    Write a short story in which {topic} and {name} play a part.
    Write a poem about {topic}.
    Write a dialogue between {name} and {reader} about {topic}.
    Write a letter from {name} to a friend, about {topic}.
    Write an email to a colleague named {name} about {topic}. Keep it {style}.
    Make a step-by-step plan for someone who wants to learn about {topic}.
    Write a quiz with four questions about {topic}, and the answers.
    Why does {topic} matter today?
    How has {topic} changed over the last hundred years?
    Write a headline and the first paragraph of a newspaper article about {topic}.
    Summarize what you know about {topic} in {length}.
    Give a definition of {topic}, then an example.
    Write a table in Markdown that compares {topic}, {other} and {third}.
    Answer as JSON with the keys "name", "summary" and "examples": what is the idea of {topic}?
    Give me ten words that belong to {topic}, with a short explanation of each.
    I have to give a talk about {topic} to {reader}. Make an outline.
    Argue for more attention to {topic}, in {length}.
    Argue against the view that {topic} will soon be unimportant.
    What would happen if there were no such thing as {topic}?
    What questions do people ask most often about {topic}? Answer three of them.
    {topic}?
    tell me about {topic} pls
    Is it true that {name} cannot learn anything about {topic}? Explain why or why not.
    Write a product description that has to do with {topic}. Make it {style}.
    Write a speech for {name}, who opens an exhibition about {topic}.
    Write a blog post with headings about {topic} for {reader}.
    Make a packing list, a shopping list or a to-do list that has to do with {topic}.
    Describe a picture that shows {topic}.
    Imagine you are {role}. What do you think about {topic}?
    Name three books or films that deal with {topic}, and say what they are about.
    Explain the words "{topic}" and "{other}" in one sentence each.
    What is the first thing to do if {name} has a problem with {topic}?
    Write {length} about {topic} in {language}.
    How do you say "{topic}" in {language}? Give an example sentence with its translation.
    Translate into {language}: {sentence} {sentence2}
    Translate into English, if it is not English already: {sentence}
    Rewrite this so that it is {style}: {sentence} {sentence2}
    Correct the spelling: {misspelled}
    Continue this story: {sentence} {sentence2}
    Put this into the past tense, the present tense and the future tense: {sentence}
    Who did what, where and when? Answer as JSON: {sentence} {sentence2}
    Turn these sentences into questions: {sentence} {sentence2}
    Repeat this exactly: {sentence} {sentence2} {sentence3}
    Sort these words alphabetically: {topic}, {other}, {third}, {name}, {place}.
    Which of these does not belong with the others, and why: {topic}, {other}, {third}?
    {sum}
    {people}
    {facts}
""")

LENGTHS = _list("""
    one sentence; two sentences; three sentences; a short paragraph; two paragraphs; 50 words; 100
    words; 200 words; a page; a list of five points; a list of three points; a few lines; one long
    paragraph; an essay of three paragraphs
""")

READERS = _list("""
    a child of six; a ten-year-old; a teenager; a beginner; an expert; my grandfather; a tourist;
    a busy manager; a nurse; an engineer; a farmer; a student of history; a sceptical neighbour;
    someone who does not speak English well; a class of twelve-year-olds; a customer; a new
    colleague
""")

STYLES = _list("""
    formal; friendly; funny; short; polite; simple; dramatic; precise; cheerful; sad; persuasive;
    neutral; old-fashioned; enthusiastic; more elegant; easier to read; like a headline
""")

LANGUAGES = _list("""
    French; French; French; German; German; German; Spanish; Spanish; Spanish; Italian;
    Portuguese; Dutch; Swedish; Polish; Latin
""")

NAMES = _list("""
    Maria; Ahmed; Sofia; Jonas; Priya; Kenji; Olga; Pedro; Fatima; Liam; Chloe; Mateo; Ingrid;
    Yusuf; Hannah; Diego; Mei; Samuel; Nadia; Viktor; Aisha; Lucas; Elena; Tom; Grace; Raj; Leila;
    Oscar
""")

PLACES = _list("""
    Oslo; Seville; Hamburg; Lyon; Boston; Kyoto; Cape Town; Montreal; Dublin; Naples; Warsaw;
    Chicago; Bangkok; Santiago; Melbourne; Edinburgh; Vienna; Accra; Helsinki; Denver; the
    village; the harbour
""")

TIMES = _list("""
    on Tuesday; last winter; in 1987; yesterday; every evening; before breakfast; in March 2014;
    two years ago; at noon; after the storm; in the summer of 1962; on 3 May; next week; at half
    past six
""")

ACTIONS = _list("""
    sold; repaired; found; lost; painted; borrowed; forgot; carried; photographed; bought; built;
    described; cleaned; hid; returned; opened; studied; ordered; delivered; broke
""")

OBJECTS = _list("""
    an old bicycle; three wooden chairs; a letter from the bank; the key to the cellar; a red
    umbrella; two tickets for the concert; a box of apples; the map of the city; a broken radio;
    her first novel; a small telescope; the office computer; a basket of fish; the neighbour's
    ladder; a silver ring; the report about the budget; 24 bottles of juice; a pair of boots; the
    last train ticket; a piano
""")

MANNERS = _list("""
    without telling anyone; because it was cheap; although it was raining; with the help of a
    friend; and was very proud of it; for 40 euros; by mistake; as the manager had asked; in a
    great hurry; and wrote about it in a diary; for the third time; so that the children could use
    it
""")

TRADES = _list("""
    teacher; baker; nurse; electrician; lawyer; pilot; gardener; translator; cook; architect;
    plumber; violinist; biologist; bus driver; librarian; journalist; carpenter; dentist;
    programmer; farmer
""")

FIELDS = _list("""
    name, age, city and job; person, place and date; title, author and year; product, price and
    stock; sender, subject and deadline; event, year and country
""")

ROLES = _list("""
    a patient teacher; a pirate; a helpful assistant; a strict editor; an experienced programmer;
    a doctor; a travel guide; a comedian; a historian; a chef; a lawyer; a scientist; a coach; a
    customer service agent; a translator; a philosopher; a journalist; a data analyst; a poet; a
    detective; a medieval monk; a robot that wants to be human; a system administrator
""")

CODE_LANGUAGES = _list("""
    Python; Python; Python; Python; JavaScript; JavaScript; TypeScript; Java; C; C++; C#; Go;
    Rust; Bash; Ruby; PHP; Kotlin; Swift; R
""")

PROBLEMS = _list("""
    reverses a string; counts the words in a file; finds the largest number in a list; sorts a
    list of people by age; checks whether a word is a palindrome; computes the factorial of a
    number; merges two sorted lists; removes duplicates from a list; reads a CSV file and prints
    its columns; writes a dictionary to a JSON file; downloads a web page; parses a date; converts
    Celsius to Fahrenheit; generates a random password; validates an email address; finds the
    shortest path in a graph; implements a stack; implements a linked list; implements a binary
    search tree; does a binary search; computes Fibonacci numbers with memoization; counts the
    vowels in a text; prints a multiplication table; simulates a dice; plays tic-tac-toe; caches
    the results of a function; retries a request three times; logs errors to a file; measures how
    long a function takes; flattens a nested list; groups records by a key; transposes a table;
    computes the mean and the median; finds anagrams in a list of words; encrypts a text with a
    Caesar cipher; compresses a string by run lengths; converts numbers to Roman numerals; checks
    whether brackets are balanced; finds prime numbers with a sieve; walks through a folder and
    sums up file sizes; renames all files of a folder; reads command line arguments; runs a small
    web server; connects to a database and reads rows; models a bank account; models a library
    with books and readers; models a parking lot; draws a triangle of stars; splits a bill among
    friends; keeps a to-do list; reads a configuration file; rounds amounts of money; finds the
    longest common prefix; rotates a list; counts how often each letter occurs; formats a phone
    number; schedules tasks by priority; limits how often a function may be called; turns a title
    into a URL; compares two versions of a text
""")

CODE_FORMS = _lines("""
    Write a function in {code} that {problem}.
    Write a function in {code} that {problem}. Only the code, please.
    Write a {code} program that {problem}, with comments.
    Write a class in {code} that {problem}, and show how to use it.
    Write a {code} function that {problem}, and unit tests for it.
    How do I write {code} code that {problem}? Explain it to {reader}.
    Explain step by step how a program {problem}.
    Show two different ways to write {code} code that {problem}, and compare them.
    Write pseudocode for a program that {problem}.
    My {code} program {problem}, but it is slow. What can I do?
    My {code} program {problem}, but it fails for empty input. How do I fix that?
    Write the documentation of a {code} function that {problem}.
    Write a SQL table for {fields}, and a query that finds the newest rows for {name}.
    Write a regular expression that matches {object} and explain it.
    Write an HTML page with a form for {fields}.
    Write a JSON document with three example records that have {fields}.
    Write a YAML configuration for a service about {topic}.
    Write CSS for a page about {topic} with two columns.
    What is the difference between a list and a dictionary in {code}? Show code that {problem}.
    Which data structure would you use for a program that {problem}, and why?
    Write a shell command that {problem}.
    Write a commit message for a change after which the program {problem}.
    Review this idea: a {code} function that {problem}, but with global variables.
""")

FOLLOW_UPS = _lines("""
    Can you make that shorter?
    Give me an example.
    Why is that?
    Explain the second point in more detail.
    I don't understand. Explain it to {reader}.
    Translate that into {language}.
    Rewrite your answer so that it is {style}.
    Put that into a list.
    Put that into a table in Markdown.
    Now say the same as JSON.
    What are the exceptions?
    How does that compare with {topic}?
    And what about {topic}?
    What would {role} say about that?
    Thanks! What should I read next?
    Are you sure? Check it again.
    What did I ask you first?
    Summarize our conversation in {length}.
    Write a title for that.
    Repeat the first sentence of your answer.
    Can you say that again, and leave out the first sentence?
    Continue.
    Write that as a letter to {name}.
    Which of these is the most important, and why?
    How much would that cost?
    What could go wrong?
    What do I need for that?
    Write three questions about it.
    Now do the same for {topic}.
    Add a part about {name} from {place}.
    Add comments, please.
    Is there a simpler way?
    Write a test for it.
    Now in {code}, please.
""")
