-- The shop of the triage example. Invented companies only; money in cents of a euro.
CREATE TABLE customers (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL,
    email TEXT NOT NULL UNIQUE
);
CREATE TABLE orders (
    id          TEXT PRIMARY KEY CHECK (id LIKE 'KL-____'),
    customer_id INTEGER NOT NULL REFERENCES customers,
    placed_on   TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('paid', 'packing', 'shipped', 'delivered', 'returned')),
    total_cents INTEGER NOT NULL CHECK (total_cents >= 0)
);
CREATE TABLE items (
    order_id TEXT NOT NULL REFERENCES orders,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    name     TEXT NOT NULL
);
CREATE TABLE shipments (
    order_id    TEXT NOT NULL REFERENCES orders,
    carrier     TEXT NOT NULL,
    tracking    TEXT NOT NULL UNIQUE,
    status      TEXT NOT NULL CHECK (status IN ('labelled', 'in transit', 'delayed', 'delivered', 'lost')),
    last_seen   TEXT NOT NULL,
    expected_on TEXT
);
-- The bank's statement. It takes a reference and prints it, but pays again for the same one: this bank knows no idempotency keys.
CREATE TABLE payments (
    id        TEXT PRIMARY KEY,
    order_id  TEXT NOT NULL REFERENCES orders,
    taken_on  TEXT NOT NULL,
    method    TEXT NOT NULL,
    cents     INTEGER NOT NULL,
    reference TEXT
);
CREATE TABLE tickets (
    id        INTEGER PRIMARY KEY,
    category  TEXT NOT NULL,
    priority  TEXT NOT NULL,
    order_id  TEXT,
    summary   TEXT NOT NULL,
    reply     TEXT NOT NULL,
    person    INTEGER NOT NULL,
    reference TEXT NOT NULL
);
-- What the shop itself saw: one row per request that reached it. It is the witness of how often a tool really ran.
CREATE TABLE access_log (
    id       INTEGER PRIMARY KEY,
    request  TEXT NOT NULL,
    subject  TEXT NOT NULL,
    pid      INTEGER NOT NULL,
    answered INTEGER NOT NULL DEFAULT 0
);

INSERT INTO customers (id, name, email) VALUES
    (1, 'Northgate School', 'facilities@northgate-school.example'),
    (2, 'Harbourlight Guesthouse', 'accounts@harbourlight.example'),
    (3, 'Café Morgenrot', 'kitchen@morgenrot.example'),
    (4, 'Südhang Keramik', 'buchhaltung@suedhang-keramik.example'),
    (5, 'Brightwater Dental', 'accounts@brightwater-dental.example'),
    (6, 'Paperfox Studio', 'hello@paperfox.example'),
    (7, 'Tea and Tide', 'orders@tea-and-tide.example'),
    (8, 'Pension Alpenblick', 'rezeption@alpenblick.example'),
    (9, 'Velvet Anchor Bistro', 'office@velvet-anchor.example'),
    (10, 'Lantern Yoga Studio', 'studio@lantern-yoga.example'),
    (11, 'Milestone Nursery', 'office@milestone-nursery.example'),
    (12, 'Odd Sock Theatre', 'team@oddsock.example');

INSERT INTO orders (id, customer_id, placed_on, status, total_cents) VALUES
    ('KL-1007', 9, '2026-01-14', 'shipped', 31250),
    ('KL-1019', 6, '2026-02-02', 'returned', 5400),
    ('KL-1029', 5, '2026-02-11', 'delivered', 10800),
    ('KL-1033', 6, '2026-02-14', 'delivered', 16900),
    ('KL-1038', 3, '2026-02-17', 'delivered', 7250),
    ('KL-1042', 1, '2026-02-19', 'shipped', 48700),
    ('KL-1045', 11, '2026-02-20', 'delivered', 6400),
    ('KL-1047', 10, '2026-02-20', 'packing', 23940),
    ('KL-1051', 2, '2026-02-26', 'shipped', 8940),
    ('KL-1053', 12, '2026-01-08', 'delivered', 55860),
    ('KL-1060', 4, '2026-02-23', 'delivered', 124800),
    ('KL-1063', 8, '2026-02-27', 'packing', 18600),
    ('KL-1066', 7, '2026-03-03', 'paid', 36000);

INSERT INTO items (order_id, quantity, name) VALUES
    ('KL-1007', 1, 'Copper kettle 3 l'), ('KL-1007', 10, 'Cup 0.2 l, blue glaze'),
    ('KL-1019', 3, 'Wool yarn 250 g, moss'),
    ('KL-1029', 4, 'Linen towel set'),
    ('KL-1033', 1, 'Table loom 40 cm'),
    ('KL-1038', 1, 'Stoneware teapot 1.2 l'),
    ('KL-1042', 6, 'Dinner service for twelve'), ('KL-1042', 1, 'Tea urn 10 l'),
    ('KL-1045', 1, 'Enamel kettle 2 l'),
    ('KL-1047', 6, 'Wool blanket 140x200'),
    ('KL-1051', 2, 'Stoneware teapot 0.8 l'),
    ('KL-1053', 14, 'Wool blanket 140x200'),
    ('KL-1060', 12, 'Frame loom S'),
    ('KL-1063', 12, 'Breakfast plate, grey glaze'),
    ('KL-1066', 40, 'Cup 0.2 l, sea glaze');

INSERT INTO shipments (order_id, carrier, tracking, status, last_seen, expected_on) VALUES
    ('KL-1007', 'Heron Parcel', 'HP-770-3181', 'lost', 'Depot North, 22 January', NULL),
    ('KL-1029', 'Swift Wren', 'SW-44-90127', 'delivered', 'Front desk, 16 February', NULL),
    ('KL-1033', 'Swift Wren', 'SW-44-90388', 'delivered', 'Studio door, 19 February', NULL),
    ('KL-1038', 'Heron Parcel', 'HP-771-0042', 'delivered', 'Kitchen entrance, 2 March', NULL),
    ('KL-1042', 'Heron Parcel', 'HP-771-2290', 'delayed', 'Depot South, 24 February', '2026-03-05'),
    ('KL-1045', 'Swift Wren', 'SW-44-91002', 'delivered', 'Office, 25 February', NULL),
    ('KL-1051', 'Swift Wren', 'SW-44-91777', 'in transit', 'Depot East, 1 March', '2026-03-04'),
    ('KL-1060', 'Heron Parcel', 'HP-771-3009', 'delivered', 'Workshop, 27 February', NULL),
    ('KL-1063', 'Swift Wren', 'SW-44-92040', 'labelled', 'Our warehouse, 3 March', '2026-03-07');

INSERT INTO payments (id, order_id, taken_on, method, cents) VALUES
    ('pay-3107', 'KL-1007', '2026-01-14', 'card', 31250),
    ('pay-3240', 'KL-1019', '2026-02-02', 'card', 5400),
    ('pay-3241', 'KL-1019', '2026-03-02', 'card refund', -5400),
    ('pay-3333', 'KL-1033', '2026-02-14', 'card', 16900),
    ('pay-3338', 'KL-1038', '2026-02-17', 'card', 7250),
    ('pay-3342', 'KL-1042', '2026-02-19', 'transfer', 48700),
    ('pay-3345', 'KL-1045', '2026-02-20', 'card', 6400),
    ('pay-3347', 'KL-1047', '2026-02-20', 'card', 23940),
    ('pay-3351', 'KL-1051', '2026-02-26', 'card', 8940),
    ('pay-3352', 'KL-1051', '2026-02-26', 'card', 8940),
    ('pay-3253', 'KL-1053', '2026-01-08', 'card', 55860),
    ('pay-3363', 'KL-1063', '2026-02-27', 'card', 18600),
    ('pay-3366', 'KL-1066', '2026-03-03', 'card', 36000);
