from perdure.testing.simulation._main import main

raise SystemExit(main())
