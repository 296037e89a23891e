// Swagger UI for /openapi.json; makes no other requests.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const applyScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", applyScheme);
applyScheme();
SwaggerUIBundle({ url: document.querySelector("#swagger-ui a").href, dom_id: "#swagger-ui", validatorUrl: null, tryItOutEnabled: true });
