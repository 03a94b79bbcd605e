// The service worker: the files of the page for when the server is away. Network first, so that an update takes effect at once;
// answers of the API are never kept. https://www.w3.org/TR/service-workers/

const SHELL = "izwi-shell";

// The page and its files alone.
const isShell = ({ method, url }) => {
  const { origin, pathname } = new URL(url);
  return method === "GET" && origin === location.origin && (pathname === "/" || pathname.startsWith("/page/"));
};

addEventListener("install", (event) => event.waitUntil(skipWaiting()));

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  if (!isShell(event.request)) return;
  event.respondWith(
    (async () => {
      const shell = await caches.open(SHELL);
      try {
        const answer = await fetch(event.request);
        if (answer.ok) await shell.put(event.request, answer.clone());
        return answer;
      } catch (error) {
        const kept = await shell.match(event.request, { ignoreVary: true });
        if (kept) return kept;
        throw error;
      }
    })(),
  );
});
