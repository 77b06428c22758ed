import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./app";

const app = document.getElementById("app")!;
app.replaceChildren();
render(<App />, app);
